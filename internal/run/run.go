// Package run runs child processes for programs that must leave nothing behind: the whole
// tree of a command ends with the command, with its context, and with this process, even when this
// process is killed. It measures the tree, and keeps secrets out of its output and errors.
//
// It does not run shells, does not know containers, and gives a child nothing of its own
// environment.
//
// On Linux every command runs under a supervisor, which is this executable started again: that is
// why a program that uses the package calls [Main] first. The supervisor is a child subreaper, so
// daemons that fork twice stay below it, and it holds one end of a socket whose other end only this
// process has: when that closes, for whatever reason, everything below the supervisor is killed.
//
// On Windows the tree is a job object that ends with this process. On other systems it is a
// process group: a child that leaves the group, or a kiln that is killed, leaves processes behind.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/secret"
)

const (
	defaultGrace     = 5 * time.Second
	defaultTailLines = 20

	// outputLimit is how long the output may take to be written after the end of the command. Only
	// a process that was not found can hold it open, or a log on a disk that hangs.
	outputLimit = time.Minute

	// reapLimit is how long a killed tree may take to vanish. Only a process that hangs
	// inside the kernel needs longer; such a process cannot be ended.
	reapLimit = 10 * time.Second
)

// ErrNotSupported is the error of [Cmd.Run] when the system cannot do what was asked, as
// opposed to the command.
var ErrNotSupported = errors.New("not supported by this system")

// Cmd is one child process. Nothing of the caller's environment reaches it. A Cmd is not
// changed by Run and may be run several times, also at once if its readers and writers can.
type Cmd struct {
	// Argv is the program and its arguments. No shell sees them. A program without a
	// separator is looked up in the PATH of Env, of which only absolute entries count; one with a
	// separator is relative to Dir.
	Argv []string
	// Dir is the working folder; empty means that of this process.
	Dir string
	// Env is the whole environment, as KEY=VALUE. The last of several equal keys counts.
	Env []string
	// Mark is KEY=VALUE in the environment of the process that supervises the command where there
	// is one, on Linux. That process is there before the command and ends after it, with or without
	// this one, so a caller that finds no such mark knows that nothing will begin.
	Mark string
	// Stdin is read by the child; nil means an empty input. A reader that is not a file should end
	// by itself: Run returns a second after the command if a read of it still hangs, and that read
	// goes on.
	Stdin io.Reader
	// Stdout and Stderr get the output, one write at a time over both. A nil Stdout discards; a nil
	// Stderr, or one equal to Stdout, means that both come in the order in which they were written.
	// A writer that returns an error ends the command.
	Stdout io.Writer
	Stderr io.Writer
	// Grace is the time from asking (SIGTERM) to killing (SIGKILL) the whole tree after the context
	// has ended. Zero means 5 seconds, a negative value kills at once. Windows asks with Ctrl-Break.
	Grace time.Duration
	// NoNetwork cuts the tree off from every network: it has a loopback interface of its own and
	// nothing else. Sockets in the file system still work. The error is
	// [ErrNotSupported] if the system refuses; the command has not been started then.
	NoNetwork bool
	// OwnProcesses gives the tree a process namespace of its own with its own /proc: it sees no other
	// process, neither its environment nor its arguments, and has no right to look behind that. The
	// error is [ErrNotSupported] if the system refuses; the command has not been started then.
	OwnProcesses bool
	// MemoryBytes is how much memory all processes of the tree may commit together; zero means no
	// limit. Only Windows holds it: there an allocation beyond it fails.
	MemoryBytes int64
	// TailLines is how many of the last lines of output are kept for the error. Zero means 20, a
	// negative value none.
	TailLines int
	// Redact lists secrets. They are replaced by "***" in the output, in the tail and in the Argv
	// of errors, also where a secret is spread over several writes. Empty strings are ignored.
	Redact []string
}

// State is how a command ended and what it used.
type State struct {
	// ExitCode is -1 when the command was ended by a signal or not started.
	ExitCode int
	// Signal is the name of the signal that ended the command ("SIGKILL"), else empty.
	Signal string
	// Wall is the time from start to end; CPU the processor time of all processes of the tree.
	Wall time.Duration
	CPU  time.Duration
	// PeakMemoryBytes is the largest memory of the tree that was seen at one time, with shared
	// pages counted once, and at least that of the largest single process. It is sampled, so a
	// short peak of several processes at once can be missed.
	PeakMemoryBytes int64
}

// Error is the error of a command that did not end with exit code 0. It unwraps to Cause and Err.
type Error struct {
	// Argv is the command, without secrets.
	Argv  []string
	State State
	// Tail has the last lines of output, without secrets and line ends.
	Tail []string
	// Cause is the cause of the context when that ended the command, else nil.
	Cause error
	// Err is what kept the command from being started or followed; nil when it simply failed.
	Err error
}

// Error says which program, how it ended and its last line. Format prints more with %+v.
func (e *Error) Error() string {
	text := e.summary()
	for _, line := range slices.Backward(e.Tail) {
		if line = strings.TrimSpace(line); line != "" && e.Cause == nil && e.Err == nil {
			return text + ": " + line
		}
	}
	return text
}

func (e *Error) summary() string {
	name := "command"
	if len(e.Argv) > 0 {
		name = filepath.Base(e.Argv[0])
	}
	switch {
	case e.Err != nil:
		return fmt.Sprintf("run %s: %v", name, e.Err)
	case e.Cause != nil:
		return fmt.Sprintf("run %s: ended: %v", name, e.Cause)
	case e.State.Signal == "SIGKILL":
		return fmt.Sprintf("run %s: killed (SIGKILL), perhaps for memory; the peak was %d MB", name, e.State.PeakMemoryBytes/1e6)
	case e.State.Signal != "":
		return fmt.Sprintf("run %s: ended by %s", name, e.State.Signal)
	}
	return fmt.Sprintf("run %s: exit code %d", name, e.State.ExitCode)
}

// Format prints the error in one line or, for %+v, with the whole command and the tail.
func (e *Error) Format(f fmt.State, verb rune) {
	switch {
	case verb == 'v' && f.Flag('+'):
		fmt.Fprintf(f, "%s\ncommand: %q", e.summary(), e.Argv)
		for _, line := range e.Tail {
			fmt.Fprintf(f, "\n  %s", line)
		}
	case verb == 'q':
		fmt.Fprintf(f, "%q", e.Error())
	default:
		fmt.Fprint(f, e.Error())
	}
}

// Unwrap returns the cause of the context and the underlying error, those that there are.
func (e *Error) Unwrap() []error {
	var list []error
	for _, err := range []error{e.Cause, e.Err} {
		if err != nil {
			list = append(list, err)
		}
	}
	return list
}

// process is one command, ready for the system: how it is started is the system's part.
type process struct {
	path           string // absolute
	argv           []string
	dir            string // absolute
	env            []string
	stdin          *os.File // nil means an empty input
	stdout, stderr io.Writer
	grace          time.Duration
	noNetwork      bool
	ownProcesses   bool
	mark           string
	memory         int64 // zero means no limit
}

// isolation says what is asked of the system, for errors.
func (p *process) isolation() string {
	switch {
	case p.noNetwork && p.ownProcesses:
		return "cut off the network and hide other processes"
	case p.noNetwork:
		return "cut off the network"
	}
	return "hide other processes"
}

// outcome is how a process ended. err is set when it could not be started or followed.
type outcome struct {
	state    State
	canceled bool // the context ended it
	err      error
}

// Run runs the command to its end. When it returns, no process of the tree is left (see the package
// comment for what other systems than Linux promise), and all output has been written. Every error
// is an [*Error]: non-zero exit code, signal, a context that ended, a program that was not found.
func (c *Cmd) Run(ctx context.Context) (State, error) {
	out := newOutput(c)
	state, cause, err := c.run(ctx, out)
	if cause == nil && err == nil && state.ExitCode == 0 {
		return state, nil
	}
	argv := slices.Clone(c.Argv)
	for i, arg := range argv {
		argv[i] = out.redact.Text(arg)
	}
	return state, &Error{Argv: argv, State: state, Tail: out.tail.lines(), Cause: cause, Err: err}
}

func (c *Cmd) run(ctx context.Context, out *output) (_ State, cause, _ error) {
	none := State{ExitCode: -1}
	if len(c.Argv) == 0 {
		return none, nil, errors.New("no program is named")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return none, nil, err
	}
	path, err := lookPath(c.Argv[0], dir, c.Env)
	if err != nil {
		return none, nil, err
	}
	if ctx.Err() != nil {
		return none, context.Cause(ctx), nil
	}
	grace := c.Grace
	if grace == 0 {
		grace = defaultGrace
	}
	// A log that cannot be written ends the command: its output would be lost.
	inner, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out.failed = stop

	stdin, closeStdin, err := openStdin(c.Stdin)
	if err != nil {
		return none, nil, err
	}
	p := &process{
		path: path, argv: c.Argv, dir: dir, env: c.Env, stdin: stdin,
		stdout: &out.stdout, stderr: &out.stderr, grace: max(grace, 0), noNetwork: c.NoNetwork, ownProcesses: c.OwnProcesses, mark: c.Mark, memory: c.MemoryBytes,
	}
	if out.merged {
		p.stderr = p.stdout
	}
	start := time.Now()
	o := p.run(inner)
	closeStdin()
	o.state.Wall = time.Since(start)
	if err := out.flush(); err != nil {
		o.err = fmt.Errorf("write its output: %w", err)
	} else if o.canceled {
		cause = context.Cause(ctx)
	}
	return o.state, cause, o.err
}

// openStdin returns the input as a file, and what is to be done when the command has ended.
func openStdin(r io.Reader) (_ *os.File, done func(), _ error) {
	if r == nil {
		return nil, func() {}, nil
	}
	if f, ok := r.(*os.File); ok {
		return f, func() {}, nil
	}
	// Not os/exec's own pipe: it would not let go of a read that hangs without letting go of the
	// output too.
	in, out, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, r) // a command need not read its input
		_ = out.Close()
	}()
	return in, func() {
		_ = in.Close()
		select {
		case <-copied:
		case <-time.After(time.Second):
		}
	}, nil
}

// stdinReader keeps a nil file from becoming a reader that is not nil.
func (p *process) stdinReader() io.Reader {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// output receives both streams of a command.
type output struct {
	merged         bool
	stdout, stderr stream
	tail           tail
	redact         *secret.Redactor
	failed         func(error)

	mu  sync.Mutex // over both streams
	err error      // of the first write that failed
}

func newOutput(c *Cmd) *output {
	out := &output{merged: c.Stderr == nil || equal(c.Stdout, c.Stderr), redact: secret.NewRedactor(c.Redact)}
	out.stdout = stream{out: out, w: c.Stdout}
	out.stderr = stream{out: out, w: c.Stderr}
	out.tail.max = c.TailLines
	if c.TailLines == 0 {
		out.tail.max = defaultTailLines
	}
	return out
}

// equal compares two writers whose types may not be comparable.
func equal(a, b io.Writer) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return a == b
}

func (o *output) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range []*stream{&o.stdout, &o.stderr} {
		s.write(nil, true)
		if len(s.line.text) > 0 && o.tail.max > 0 {
			o.tail.push(&s.line)
		}
	}
	return o.err
}

// stream is one of the two streams. It never returns an error: the command is ended instead, and
// goes on being read until then.
type stream struct {
	out     *output
	w       io.Writer
	pending []byte // may be the beginning of a secret
	clean   []byte // reused
	line    tailLine
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.write(p, false)
	return len(p), nil
}

func (s *stream) write(p []byte, final bool) {
	if !s.out.redact.Empty() {
		s.pending = append(s.pending, p...)
		var rest []byte
		s.clean, rest = s.out.redact.Append(s.clean[:0], s.pending, final)
		s.pending = append(s.pending[:0], rest...)
		p = s.clean
	}
	if len(p) == 0 {
		return
	}
	s.out.tail.write(&s.line, p)
	if s.w == nil || s.out.err != nil {
		return
	}
	n, err := s.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.out.err = err
		s.out.failed(err)
	}
}

// getenv returns the last value of a key.
func getenv(env []string, key string) string {
	for _, kv := range slices.Backward(env) {
		if k, v, ok := strings.Cut(kv, "="); ok && envKeyEqual(k, key) {
			return v
		}
	}
	return ""
}

// lookPath finds the program as the child would, and not as this process would.
func lookPath(name, dir string, env []string) (string, error) {
	if name == "" {
		return "", errors.New("no program is named")
	}
	if strings.ContainsAny(name, pathSeparators) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return findExecutable(name, env)
	}
	var found error
	list := getenv(env, "PATH")
	for _, folder := range filepath.SplitList(list) {
		if !filepath.IsAbs(folder) {
			continue // what runs must not depend on the working folder
		}
		path, err := findExecutable(filepath.Join(folder, name), env)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, exec.ErrNotFound) {
			found = err // there, but not executable
		}
	}
	if found != nil {
		return "", found
	}
	if list == "" {
		return "", fmt.Errorf("%w: its environment has no PATH", exec.ErrNotFound)
	}
	return "", fmt.Errorf("%w: %s", exec.ErrNotFound, list)
}
