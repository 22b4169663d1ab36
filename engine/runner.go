package engine

import "context"

// Runner does the work of jobs. Package enginetest checks that an implementation keeps the promises
// below.
//
// All methods may be called from several goroutines at once, except for Sweep.
type Runner interface {
	// Name is for messages: "local", "slurm".
	Name() string

	// Capacity says what the runner has for all its attempts together. It is asked once a run.
	Capacity() Capacity

	// Run makes one attempt and returns when it has ended and nothing of it is left: no process, no
	// container, no writer in a.Dir.
	//
	// When ctx ends, the attempt is to be ended, within seconds; the engine waits for that without
	// a limit. The error should then be, or wrap, [context.Cause] of ctx.
	//
	// A nil error means success. An error of [Skip] skips the job. Any other has a cause, see
	// [CauseOf], that decides on another attempt. The measurements of the result count also with an
	// error. A panic is a [CauseFault].
	//
	// Run is called once for an attempt, and never for two attempts of a job at the same time. It
	// may write only to a.Dir, to the folders in a.Earlier, and where the job's payload says. What
	// must outlive a crash of the machine it makes durable itself before it returns.
	Run(ctx context.Context, a *Attempt) (Result, error)

	// Sweep ends and removes whatever attempts of earlier, killed processes left behind: processes,
	// containers, queued work. It is called once at the start of a run, before any attempt, and
	// lists the attempts that have no end in the journal; there may be leftovers of others. After
	// an error the run does not start. It must not touch what belongs to other state folders.
	Sweep(ctx context.Context, lost []Lost) error
}

// Keeper is a runner whose attempts go on when the process that began them ends: those of a batch
// system.
type Keeper interface {
	Runner

	// Keep is asked before Sweep about attempts that have no end in the journal and whose jobs are
	// still wanted, with the same digest. It returns those that are at work, that wait to be, or
	// that have left a result since. They are not lost: Resume is called for each. The others are,
	// and go to Sweep with the rest.
	Keep(ctx context.Context, lost []Lost) ([]Lost, error)

	// Resume is [Runner.Run] for an attempt that another process began. All that Run promises
	// holds.
	Resume(ctx context.Context, a *Attempt) (Result, error)
}

// Lost is an attempt without an end. Its folder is kept for the next one.
type Lost struct {
	Job    string
	Number int
	Dir    string
}

// Capacity is what a runner has. A zero field means that it uses this machine; a negative one that
// there is no limit.
type Capacity struct {
	CPU         int
	MemoryBytes int64
	DiskBytes   int64
	// Queue says that attempts wait for their turn after [Runner.Run] was called. Their wall time
	// begins when the work does, so its limit is the runner's to keep; [Work] does.
	Queue bool
}

// LocalRunner runs a function in this process. See [Local].
type LocalRunner struct {
	// Func is [Runner.Run].
	Func func(ctx context.Context, a *Attempt) (Result, error)
	// OnSweep is [Runner.Sweep]; nil means that nothing can be left: the commands of package run
	// end with this process.
	OnSweep func(ctx context.Context, lost []Lost) error
}

// Local returns a runner that calls f in this process, on this machine.
func Local(f func(ctx context.Context, a *Attempt) (Result, error)) *LocalRunner {
	return &LocalRunner{Func: f}
}

// Name is "local".
func (l *LocalRunner) Name() string { return "local" }

// Capacity is this machine.
func (l *LocalRunner) Capacity() Capacity { return Capacity{} }

// Run calls Func.
func (l *LocalRunner) Run(ctx context.Context, a *Attempt) (Result, error) { return l.Func(ctx, a) }

// Sweep calls OnSweep.
func (l *LocalRunner) Sweep(ctx context.Context, lost []Lost) error {
	if l.OnSweep == nil {
		return nil
	}
	return l.OnSweep(ctx, lost)
}
