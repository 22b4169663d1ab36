package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
)

// maxPassed is how many jobs may start before one that is ready, comes first and does not fit.
const maxPassed = 8

// How many attempts of one run may end with a cause.
var maxTries = map[Cause]int{CauseNetwork: 3, CauseMemory: 3, CauseTime: 3, CauseDisk: 2, CauseLost: 5, CausePaused: 20}

// maxShrink is the last step of [Attempt.Shrink].
const maxShrink = 2

// progressRecordPause is the least time between two records of an attempt's progress: they are for
// people who look from outside.
const progressRecordPause = 5 * time.Second

// scheduler is one run. The goroutine of run owns all of it; attempts run in goroutines of their
// own and speak through messages.
type scheduler struct {
	graph   *graph
	opts    Options
	limits  limits
	journal *journal
	book    *book

	tasks   []task
	open    int     // tasks that have not ended
	ready   []*task // in the order in which they should start
	delayed []*task // waiting for retryAt
	running int
	alone   bool // the one running job is larger than the limits
	used    Resources
	timer   *time.Timer // for delayed

	messages chan message
	over     chan struct{} // closed when messages are no longer read
	work     context.Context
	stopWork context.CancelCauseFunc
	stopped  error // why nothing more is to be started
	broken   error // of the journal
	events   []Event
	launches []*task        // started in the journal's buffer; begin after it is written
	kept     map[string]int // attempts of an earlier process that go on, by job

	cleanDisk sync.Mutex
	cleaners  sync.WaitGroup
}

// task is a job in a run.
type task struct {
	job    *Job
	index  int
	known  *JobState
	ended  bool
	waits  int // needs that are not done
	counts Resources
	expect time.Duration
	passed int

	shrink   int
	clean    bool // clean the disk first
	tries    map[Cause]int
	retryAt  time.Time
	attempt  *Attempt
	resumed  bool      // attempt was begun by an earlier process
	recorded time.Time // the last progress in the journal

	report JobReport
}

// message is what an attempt says: an event or, at the end, its result.
type message struct {
	task    *task
	attempt *Attempt
	event   *Event
	result  Result
	err     error
	wall    time.Duration
}

func newScheduler(g *graph, opts Options, l limits, j *journal, b *book) *scheduler {
	return &scheduler{
		graph: g, opts: opts, limits: l, journal: j, book: b,
		tasks: make([]task, len(g.jobs)), open: len(g.jobs),
		messages: make(chan message, 256), over: make(chan struct{}),
	}
}

func (s *scheduler) run(ctx context.Context) (*Report, error) {
	s.work, s.stopWork = context.WithCancelCause(ctx)
	defer s.stopWork(nil)
	defer close(s.over)
	defer s.cleaners.Wait()
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	report := &Report{Started: time.Now()}
	s.begin()
	s.loop(ctx)
	s.journal.add(&record{Kind: recordRunEnd})
	s.commit()

	report.Ended = time.Now()
	report.Jobs = make([]JobReport, len(s.tasks))
	for i := range s.tasks {
		report.Jobs[i] = s.tasks[i].report
	}
	if s.broken != nil {
		return report, s.broken
	}
	if ctx.Err() != nil && report.Count(StatusCanceled) > 0 {
		return report, context.Cause(ctx)
	}
	return report, nil
}

// sweep ends what an earlier process left behind.
func (s *scheduler) sweep(ctx context.Context) error {
	var lost []Lost
	for _, id := range s.book.order {
		if j := s.book.jobs[id]; j.Status == StatusRunning {
			lost = append(lost, Lost{Job: id, Number: j.Attempt, Dir: j.Dir()})
		}
	}
	lost, err := s.keep(ctx, lost)
	if err != nil {
		return fmt.Errorf("look after the attempts of an earlier run (%s): %w", s.opts.Runner.Name(), err)
	}
	if err := s.opts.Runner.Sweep(ctx, lost); err != nil {
		return fmt.Errorf("sweep up after an earlier run (%s): %w", s.opts.Runner.Name(), err)
	}
	for _, l := range lost {
		s.journal.add(&record{Kind: recordEnd, Job: l.Job, Attempt: l.Number, Status: StatusPending, Cause: CauseLost, Error: "kiln ended first"})
	}
	return s.sweepFolders()
}

// keep asks the runner which attempts go on, and returns the others.
func (s *scheduler) keep(ctx context.Context, lost []Lost) ([]Lost, error) {
	keeper, ok := s.opts.Runner.(Keeper)
	if !ok {
		return lost, nil
	}
	var wanted []Lost
	for _, l := range lost {
		// One without a digest was begun for a run that is over.
		if i, ok := s.graph.index[l.Job]; ok && s.graph.jobs[i].Digest != "" && s.graph.jobs[i].Digest == s.book.jobs[l.Job].Digest {
			wanted = append(wanted, l)
		}
	}
	if len(wanted) == 0 {
		return lost, nil
	}
	kept, err := keeper.Keep(ctx, wanted)
	if err != nil {
		return nil, err
	}
	s.kept = make(map[string]int, len(kept))
	for _, l := range kept {
		s.kept[l.Job] = l.Number
	}
	return slices.DeleteFunc(lost, func(l Lost) bool { return s.kept[l.Job] == l.Number }), nil
}

// sweepFolders removes the folders of attempts that nothing needs any more.
func (s *scheduler) sweepFolders() error {
	dir := s.book.dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	byName := make(map[string]*JobState, len(s.book.jobs))
	for id, j := range s.book.jobs {
		byName[folderName(id)] = j
	}
	for _, entry := range entries {
		name := entry.Name()
		remove := fsx.IsTemp(name)
		if i := strings.LastIndexByte(name, '.'); i > 0 {
			n, err := strconv.Atoi(name[i+1:])
			j := byName[name[:i]]
			remove = remove || err == nil && j != nil && !j.keeps(n)
		}
		if remove {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				s.opts.Log.Warn("cannot remove the folder of an old attempt", "error", err)
			}
		}
	}
	return nil
}

// begin submits all jobs.
func (s *scheduler) begin() {
	plan := make([]string, len(s.graph.jobs))
	for i := range plan {
		plan[i] = s.graph.jobs[i].ID
	}
	host, _ := os.Hostname() // for people only
	r := &record{Kind: recordRun, PID: os.Getpid(), Host: host, SamePlan: slices.Equal(plan, s.book.plan)}
	if !r.SamePlan {
		r.Plan = plan
	}
	s.journal.add(r)

	classes := s.learnedByClass()
	for i := range s.tasks {
		t, job := &s.tasks[i], &s.graph.jobs[i]
		*t = task{job: job, index: i, known: s.book.job(job.ID), waits: len(job.waitsFor()), report: JobReport{ID: job.ID}}
		learned := t.known.Learned
		if learned.PeakMemoryBytes == 0 && job.Class != "" {
			class := classes[job.Class]
			learned.PeakMemoryBytes = class.PeakMemoryBytes
			learned.DiskBytes = max(learned.DiskBytes, class.DiskBytes)
			learned.Wall = max(learned.Wall, class.Wall)
		}
		t.counts, t.expect = s.limits.count(job.Resources, learned), learned.Wall
		t.shrink = learned.Shrink
		if t.known.Digest == job.Digest {
			t.shrink = min(max(t.shrink, t.known.Shrink), maxShrink)
		}
		s.emit(Event{Job: job.ID, Kind: EventSubmitted})
	}
	for i := range s.tasks {
		if t := &s.tasks[i]; s.kept[t.job.ID] == 0 && s.reusable(t) {
			f := t.known.Finished
			t.report.Wall, t.report.Result, t.report.Dir = f.Wall, f.Result, t.known.folder(f.Attempt)
			s.emit(Event{Job: t.job.ID, Kind: EventReused, Wall: f.Wall, PeakMemoryBytes: f.Result.PeakMemoryBytes, Dir: t.report.Dir})
			s.end(t, StatusReused)
		}
	}
	for i := range s.tasks {
		switch t := &s.tasks[i]; {
		case t.ended:
		case s.kept[t.job.ID] > 0:
			s.resume(t, s.kept[t.job.ID])
		case t.waits == 0:
			s.ready = append(s.ready, t)
		}
	}
	slices.SortFunc(s.ready, s.order)
}

func (s *scheduler) learnedByClass() map[string]Learned {
	classes := make(map[string]Learned)
	for _, j := range s.book.jobs {
		if j.Class != "" && j.Learned.PeakMemoryBytes > 0 {
			l := classes[j.Class]
			l.PeakMemoryBytes = max(l.PeakMemoryBytes, j.Learned.PeakMemoryBytes)
			l.DiskBytes = max(l.DiskBytes, j.Learned.DiskBytes)
			l.Wall = max(l.Wall, j.Learned.Wall)
			classes[j.Class] = l
		}
	}
	return classes
}

// reusable reports whether an earlier run did the job.
func (s *scheduler) reusable(t *task) bool {
	f := t.known.Finished
	if f == nil {
		return false
	}
	if t.job.Digest != "" && f.Digest == t.job.Digest {
		if s.opts.Reuse == nil {
			return s.reuse(t)
		}
		err := s.opts.Reuse(*t.job, f.Result)
		if err == nil {
			return s.reuse(t)
		}
		s.opts.Log.Info("the earlier result cannot be used", "row", t.job.ID, "reason", err)
	}
	if t.known.Status == StatusDone {
		s.journal.add(&record{Kind: recordSubmitted, Job: t.job.ID})
	}
	return false
}

// reuse notes a success that a later failure, of another digest, has hidden.
func (s *scheduler) reuse(t *task) bool {
	if t.known.Status != StatusDone {
		s.journal.add(&record{Kind: recordEnd, Job: t.job.ID, Status: StatusDone})
	}
	return true
}

// order is which of two ready tasks should start first.
func (s *scheduler) order(a, b *task) int {
	if s.limits.memory < 0 {
		// Nothing has to be packed here: the last to end is then the one that began too late.
		return cmp.Or(cmp.Compare(b.expect, a.expect), cmp.Compare(b.counts.MemoryBytes, a.counts.MemoryBytes), cmp.Compare(a.index, b.index))
	}
	return cmp.Or(
		cmp.Compare(b.counts.MemoryBytes, a.counts.MemoryBytes),
		cmp.Compare(b.expect, a.expect),
		cmp.Compare(a.index, b.index),
	)
}

func (s *scheduler) loop(ctx context.Context) {
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	defer s.timer.Stop()
	done := ctx.Done()
	for {
		if ctx.Err() != nil {
			s.stop(context.Cause(ctx)) // nothing starts any more, whatever else there is to read
		}
		s.startReady()
		s.commit()
		if s.open == 0 && s.running == 0 {
			return
		}
		select {
		case m := <-s.messages:
			s.handle(m)
			// Whatever else is there shares one write.
			for more := true; more; {
				select {
				case m := <-s.messages:
					s.handle(m)
				default:
					more = false
				}
			}
		case <-s.timer.C:
			s.wake()
		case <-done:
			done = nil
		case <-s.journal.timer.C:
			s.journal.due()
		case err, failed := <-s.journal.synced:
			if failed {
				s.breakDown(err)
			}
		}
	}
}

// commit writes the journal, and then lets the world see what it says.
func (s *scheduler) commit() {
	for {
		if err := s.journal.flush(); err != nil {
			s.breakDown(err)
		}
		for _, e := range s.events {
			if s.opts.OnEvent != nil {
				s.opts.OnEvent(e)
			}
		}
		s.events = s.events[:0]
		for _, t := range s.launches {
			s.launch(t)
		}
		s.launches = s.launches[:0]
		if len(s.journal.buf) == 0 && len(s.events) == 0 {
			return
		}
	}
}

func (s *scheduler) emit(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	s.events = append(s.events, e)
}

// breakDown ends the run because nothing can be remembered any more.
func (s *scheduler) breakDown(err error) {
	if s.broken == nil {
		s.broken = fmt.Errorf("write the journal: %w", err)
		s.stop(s.broken)
	}
}

// stop cancels what runs and what was to run.
func (s *scheduler) stop(cause error) {
	if s.stopped != nil {
		return
	}
	s.stopped = cause
	s.stopWork(cause)
	s.ready, s.delayed = nil, nil
	for i := range s.tasks {
		if t := &s.tasks[i]; !t.ended && t.attempt == nil {
			s.cancel(t, cause)
		}
	}
}

func (s *scheduler) cancel(t *task, cause error) {
	t.report.Reason, t.report.Err = cause.Error(), cause
	s.journal.add(&record{Kind: recordEnd, Job: t.job.ID, Status: StatusCanceled, Error: cause.Error()})
	s.emit(Event{Job: t.job.ID, Kind: EventCanceled, Text: cause.Error(), Err: cause})
	s.end(t, StatusCanceled)
}

// wake moves tasks whose pause is over to the ready ones.
func (s *scheduler) wake() {
	now := time.Now()
	s.delayed = slices.DeleteFunc(s.delayed, func(t *task) bool {
		if t.retryAt.After(now) {
			return false
		}
		s.makeReady(t)
		return true
	})
	s.setTimer()
}

func (s *scheduler) setTimer() {
	if len(s.delayed) == 0 {
		s.timer.Stop()
		return
	}
	first := slices.MinFunc(s.delayed, func(a, b *task) int { return a.retryAt.Compare(b.retryAt) })
	s.timer.Reset(time.Until(first.retryAt))
}

func (s *scheduler) makeReady(t *task) {
	t.passed = 0
	i, _ := slices.BinarySearchFunc(s.ready, t, s.order)
	s.ready = slices.Insert(s.ready, i, t)
}

// startReady starts what fits, by the rule of the package comment.
func (s *scheduler) startReady() {
	if s.stopped != nil {
		return
	}
	disk, diskKnown := int64(-1), false
	for i := 0; i < len(s.ready) && !s.full(); {
		t := s.ready[i]
		if t.counts.DiskBytes > 0 && !diskKnown {
			disk, diskKnown = s.limits.diskNow(), true
		}
		if !s.fits(t, disk) {
			if t.passed >= maxPassed {
				return
			}
			i++
			continue
		}
		for _, passed := range s.ready[:i] {
			passed.passed++
		}
		if i == 0 {
			s.ready = s.ready[1:]
		} else {
			s.ready = slices.Delete(s.ready, i, i+1)
			i = 0 // one that was passed may have had enough of it
		}
		s.start(t, disk)
	}
}

// full is a quick look whether nothing at all can start.
func (s *scheduler) full() bool {
	return s.alone || s.opts.Jobs > 0 && s.running >= s.opts.Jobs || s.limits.cpu > 0 && s.used.CPU >= s.limits.cpu
}

func within(n, limit int64) bool { return limit < 0 || n <= limit }

func (s *scheduler) fits(t *task, disk int64) bool {
	if s.running == 0 {
		return true
	}
	return within(int64(s.used.CPU+t.counts.CPU), int64(s.limits.cpu)) &&
		within(s.used.MemoryBytes+t.counts.MemoryBytes, s.limits.memory) &&
		(t.counts.DiskBytes == 0 || within(s.used.DiskBytes+t.counts.DiskBytes, disk))
}

// start notes an attempt; it begins when the journal has it.
func (s *scheduler) start(t *task, disk int64) {
	number := t.known.Attempt + 1
	t.attempt = &Attempt{
		Job: *t.job, Number: number, Dir: t.known.folder(number), Earlier: t.known.earlier(t.job.Digest), Shrink: t.shrink, Resources: t.counts,
		Expect: t.expect,
	}
	if len(t.attempt.Earlier) > 0 {
		t.attempt.Previous = t.attempt.Earlier[0]
	}
	s.occupy(t)
	resources := t.counts
	s.journal.add(&record{
		Kind: recordAttempt, Job: t.job.ID, Attempt: number, Digest: t.job.Digest, Class: t.job.Class, Shrink: t.shrink, Resources: &resources,
	})
	s.emit(Event{Job: t.job.ID, Attempt: number, Kind: EventStarted, Dir: t.attempt.Dir})
	if !within(t.counts.MemoryBytes, s.limits.memory) {
		s.alone = true
		s.warn(t, fmt.Sprintf("counts with %s of memory, more than the %s that jobs may use: it runs alone",
			units.Bytes(t.counts.MemoryBytes), units.Bytes(s.limits.memory)))
	}
	if t.counts.DiskBytes > 0 && !within(t.counts.DiskBytes, disk) {
		s.alone = true
		s.warn(t, fmt.Sprintf("counts with %s of disk, more than the %s that jobs may use: it runs alone",
			units.Bytes(t.counts.DiskBytes), units.Bytes(disk)))
	}
	s.launches = append(s.launches, t)
}

// occupy counts an attempt.
func (s *scheduler) occupy(t *task) {
	s.running++
	s.used.CPU += t.counts.CPU
	s.used.MemoryBytes += t.counts.MemoryBytes
	s.used.DiskBytes += t.counts.DiskBytes
	t.report.Attempts++
	t.report.Dir = t.attempt.Dir
}

// resume goes on with an attempt that is in the journal already.
func (s *scheduler) resume(t *task, number int) {
	t.attempt = &Attempt{Job: *t.job, Number: number, Dir: t.known.folder(number), Shrink: t.known.Shrink, Resources: t.counts, Expect: t.expect}
	t.shrink, t.resumed = t.known.Shrink, true
	s.occupy(t)
	s.emit(Event{Job: t.job.ID, Attempt: number, Kind: EventStarted, Dir: t.attempt.Dir})
	s.launches = append(s.launches, t)
}

func (s *scheduler) warn(t *task, text string) {
	s.emit(Event{Job: t.job.ID, Attempt: t.attempt.Number, Kind: EventWarning, Text: text})
}

// limitError is the cause of a context whose wall time is over.
type limitError struct{ limit time.Duration }

func (e *limitError) Error() string { return fmt.Sprintf("wall time limit of %v reached", e.limit) }

// withLimit ends the context when the time is over; zero means no limit.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, &limitError{limit})
}

// limitCause makes a [CauseTime] of the error of an attempt whose time was over.
func limitCause(ctx context.Context, err error) error {
	over, ok := errors.AsType[*limitError](context.Cause(ctx))
	switch {
	case !ok || err == nil:
		return err
	case errors.Is(err, over):
		return Fail(CauseTime, err)
	}
	return Fail(CauseTime, fmt.Errorf("%w: %w", over, err))
}

// launch runs an attempt in a goroutine of its own, which ends with the message of its result.
func (s *scheduler) launch(t *task) {
	a, clean, resumed := t.attempt, t.clean, t.resumed
	t.clean, t.resumed = false, false
	ended := make(chan struct{})
	a.emit = func(e Event) {
		select {
		case <-ended: // by a goroutine that outlived its attempt
		case <-s.over:
		case s.messages <- message{task: t, attempt: a, event: &e}:
		}
	}
	go func() {
		limit := a.Job.WallLimit
		if s.limits.queue {
			limit = 0
		}
		ctx, cancel := withLimit(s.work, limit)
		start := time.Now()
		result, err := s.try(ctx, a, clean, resumed)
		wall := cmp.Or(result.Wall, time.Since(start))
		err = limitCause(ctx, err)
		cancel()
		close(ended)
		s.messages <- message{task: t, attempt: a, result: a.withUsed(result), err: err, wall: wall}
	}()
}

// try runs an attempt.
func (s *scheduler) try(ctx context.Context, a *Attempt, clean, resumed bool) (Result, error) {
	if resumed {
		return callRunner(ctx, s.opts.Runner.(Keeper).Resume, a)
	}
	if clean && s.opts.CleanDisk != nil {
		s.cleanDisk.Lock()
		err := s.opts.CleanDisk(ctx)
		s.cleanDisk.Unlock()
		if err != nil {
			a.Warn("clean the disk: " + err.Error())
		}
	}
	if err := makeFolder(a.Dir); err != nil {
		return Result{}, err
	}
	return callRunner(ctx, s.opts.Runner.Run, a)
}

// callRunner makes an attempt, and an error of whatever else a runner may do.
func callRunner(ctx context.Context, run func(context.Context, *Attempt) (Result, error), a *Attempt) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Fail(CauseFault, fmt.Errorf("the runner panicked: %v\n%s", p, debug.Stack()))
		}
		if err != nil {
			result.Outputs = nil
		}
	}()
	result, err = run(ctx, a)
	if err == nil && len(result.Outputs) > 0 && !json.Valid(result.Outputs) {
		err = errors.New("the runner's outputs are not JSON")
	}
	return result, err
}

// makeFolder makes an empty folder. What is there belongs to an attempt that the journal does not
// know.
func makeFolder(dir string) error {
	err := os.Mkdir(dir, 0o777)
	if errors.Is(err, os.ErrExist) {
		if err = os.RemoveAll(dir); err == nil {
			err = os.Mkdir(dir, 0o777)
		}
	}
	if err != nil {
		return fmt.Errorf("make the attempt's folder: %w", err)
	}
	return nil
}

func (s *scheduler) handle(m message) {
	if m.attempt != m.task.attempt {
		return // an event after the end
	}
	if m.event != nil {
		s.note(m.task, m.event)
		return
	}
	t := m.task
	t.attempt = nil
	s.running--
	s.used.CPU -= t.counts.CPU
	s.used.MemoryBytes -= t.counts.MemoryBytes
	s.used.DiskBytes -= t.counts.DiskBytes
	if s.running == 0 {
		s.alone = false
	}
	t.report.Wall += m.wall
	peak := max(t.report.Result.PeakMemoryBytes, m.result.PeakMemoryBytes)
	t.report.Result = m.result
	t.report.Result.PeakMemoryBytes = peak

	r := &record{
		Kind: recordEnd, Job: t.job.ID, Attempt: m.attempt.Number, Wall: m.wall,
		Peak: m.result.PeakMemoryBytes, Disk: m.result.DiskBytes, Outputs: m.result.Outputs,
	}
	e := Event{Job: t.job.ID, Attempt: m.attempt.Number, Wall: m.wall, PeakMemoryBytes: m.result.PeakMemoryBytes, Dir: m.attempt.Dir, Err: m.err}
	status := s.judge(t, m, r, &e)
	before := slices.Clone(t.known.Folders)
	if f := t.known.Finished; f != nil {
		before = append(before, Folder{Attempt: f.Attempt})
	}
	s.journal.add(r)
	s.emit(e)
	s.collect(t, append(before, Folder{Attempt: m.attempt.Number}))
	switch {
	case status == StatusPending && s.stopped != nil:
		// Stopped by another one in the same moment.
		s.cancel(t, s.stopped)
	case status == StatusPending:
		if delay := time.Until(t.retryAt); delay > 0 {
			s.delayed = append(s.delayed, t)
			s.setTimer()
		} else {
			s.makeReady(t)
		}
	default:
		s.end(t, status)
		if status == StatusFailed && s.opts.FailFast {
			s.stop(fmt.Errorf("%s failed", t.job.ID))
		}
	}
}

// judge decides what the end of an attempt means and fills in the record and the event.
func (s *scheduler) judge(t *task, m message, r *record, e *Event) Status {
	if m.err == nil {
		r.Status, e.Kind = StatusDone, EventFinished
		return StatusDone
	}
	text := m.err.Error()
	if reason, ok := SkipReason(m.err); ok {
		r.Status, r.Error = StatusSkipped, reason
		e.Kind, e.Text = EventSkipped, reason
		t.report.Reason = reason
		return StatusSkipped
	}
	cause := CauseOf(m.err)
	if s.work.Err() != nil {
		cause = CauseCanceled
	}
	r.Cause, r.Error, e.Cause, e.Error = cause, text, cause, text
	t.report.Cause, t.report.Reason, t.report.Err = cause, text, m.err
	if cause == CauseCanceled {
		r.Status, e.Kind, e.Text = StatusCanceled, EventCanceled, text
		return StatusCanceled
	}
	if s.retry(t, cause, m) {
		r.Status, e.Kind, e.Delay = StatusPending, EventRetry, max(0, time.Until(t.retryAt))
		return StatusPending
	}
	if cause == CauseMemory {
		text = "killed for memory, at last with one thing at a time: " + text
		if peak := t.report.Result.PeakMemoryBytes; peak > 0 {
			text = fmt.Sprintf("%s; the largest peak was %s", text, units.Bytes(peak))
		}
		r.Error, e.Error, t.report.Reason = text, text, text
	}
	r.Status, e.Kind = StatusFailed, EventFailed
	return StatusFailed
}

// retry decides on another attempt after a failure, and how it differs.
func (s *scheduler) retry(t *task, cause Cause, m message) bool {
	if t.tries == nil {
		t.tries = make(map[Cause]int)
	}
	t.tries[cause]++
	if t.tries[cause] >= maxTries[cause] {
		return false
	}
	t.retryAt = time.Time{}
	switch cause {
	case CauseMemory:
		if t.shrink == maxShrink {
			return false
		}
		t.shrink++
		// It needed at least this, and would have gone on.
		t.counts.MemoryBytes = max(t.counts.MemoryBytes, withMargin(m.result.PeakMemoryBytes))
	case CauseNetwork, CauseLost:
		delay := s.opts.RetryDelay
		for range t.tries[cause] - 1 {
			delay *= 3
		}
		t.retryAt = time.Now().Add(delay)
	case CauseDisk:
		t.clean = true
	case CausePaused:
		t.expect = 2 * max(t.expect, m.wall)
	}
	return true
}

// note passes an attempt's event on.
func (s *scheduler) note(t *task, e *Event) {
	r := record{Job: e.Job, Attempt: e.Attempt, Time: e.Time.UTC().Round(0), Stage: e.Stage}
	switch e.Kind {
	case EventStage:
		r.Kind = recordStage
	case EventStageDone:
		r.Kind, r.Error, r.Wall = recordStageDone, e.Error, e.Wall
	case EventProgress:
		if e.Time.Sub(t.recorded) >= progressRecordPause {
			t.recorded = e.Time
			r.Kind, r.Done, r.Total, r.Text = recordProgress, e.Done, e.Total, e.Text
		}
	}
	if r.Kind != "" {
		s.journal.add(&r)
	}
	s.emit(*e)
}

// collect removes, of the folders that were there, those that are of no use any more. It does not
// wait: a folder can be large. The name changes first, so that a crash leaves nothing half removed.
func (s *scheduler) collect(t *task, folders []Folder) {
	var remove []string
	for _, f := range folders {
		if dir := t.known.folder(f.Attempt); !t.known.keeps(f.Attempt) {
			remove = append(remove, dir)
		}
	}
	last := t.report.Dir
	s.cleaners.Go(func() {
		_ = removeEmpty(last)
		for _, dir := range remove {
			if !isDir(dir) {
				continue
			}
			temp, err := fsx.MkdirTemp(dir)
			if err == nil {
				err = errors.Join(os.Rename(dir, filepath.Join(temp, "old")), os.RemoveAll(temp))
			}
			if err != nil {
				s.opts.Log.Warn("cannot remove the folder of an old attempt", "row", t.job.ID, "error", err)
			}
		}
	})
}

// end is the end of a job, and what it means for those that need it.
func (s *scheduler) end(t *task, status Status) {
	t.ended, t.report.Status = true, status
	if status == StatusDone || status == StatusReused || status == StatusSkipped {
		t.report.Err, t.report.Cause = nil, "" // of earlier attempts
		if status != StatusSkipped {
			t.report.Reason = ""
		}
	}
	s.open--
	for _, i := range s.graph.dependents[t.index] {
		d := &s.tasks[i]
		switch {
		case d.ended:
		case d.attempt != nil: // begun by an earlier process, when what it needs was there
			d.waits--
		case status == StatusDone || status == StatusReused, status != StatusCanceled && slices.Contains(d.job.After, t.job.ID):
			// While jobs are being submitted, begin looks for those that wait for nothing.
			if d.waits--; d.waits == 0 && s.timer != nil {
				s.makeReady(d)
			}
		case status == StatusCanceled:
			s.cancel(d, t.report.Err)
		default:
			// Of a chain of reasons the first is the one that helps.
			reason := t.report.Reason
			if !strings.HasPrefix(reason, "needs ") {
				reason = fmt.Sprintf("needs %s, which %s: %s", t.job.ID, map[Status]string{StatusFailed: "failed", StatusSkipped: "was skipped"}[status], firstLine(reason))
			}
			d.report.Reason = reason
			s.journal.add(&record{Kind: recordEnd, Job: d.job.ID, Status: StatusSkipped, Error: reason})
			s.emit(Event{Job: d.job.ID, Kind: EventSkipped, Text: reason})
			s.end(d, StatusSkipped)
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
