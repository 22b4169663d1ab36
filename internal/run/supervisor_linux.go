package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervisorName is argv[0] of a supervisor. The space keeps it from being the name of a file.
const supervisorName = "kiln supervisor"

// lifeline is the descriptor of the socket to the parent inside a supervisor.
const lifeline = 3

// mainCalled tells whether this executable, started again, would act as a supervisor and not as
// itself: without Main it would start itself without end.
var mainCalled atomic.Bool

// Main must be the first call of a program that uses [Cmd]: in main, and in TestMain of a
// package whose tests do. When this process was started as a supervisor it does that job and
// never returns; otherwise it returns at once. On other systems than Linux it does nothing.
func Main() {
	if len(os.Args) == 1 && os.Args[0] == supervisorName {
		supervise()
	}
	mainCalled.Store(true)
}

// order is what the parent writes to the lifeline, one JSON object a line: first what to run, then,
// if the context ends, to stop it. Bytes, because JSON would change what is not UTF-8.
type order struct {
	Path []byte
	Argv [][]byte
	Dir  []byte
	Env  [][]byte
	// OwnProcesses says that the supervisor is in a process namespace that has no /proc yet.
	OwnProcesses bool

	Stop  bool
	Grace time.Duration

	// Orphan is not sent: the lifeline has ended.
	Orphan bool `json:"-"`
}

// notice is what the supervisor writes back at the end.
type notice struct {
	Status     uint32 // of wait4
	Error      string // the command was not started
	Errno      syscall.Errno
	Refused    bool // the error is about the isolation; another way may do
	CPU        time.Duration
	Peak       int64
	LeftBehind []int // processes that did not end after SIGKILL
}

func toBytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

func toStrings(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

func (p *process) run(ctx context.Context) outcome {
	if !mainCalled.Load() {
		return outcome{state: State{ExitCode: -1}, err: errors.New("the program did not call run.Main first")}
	}
	ways := []*syscall.SysProcAttr{{Setsid: true}}
	isolated := p.noNetwork || p.ownProcesses
	if isolated {
		ways = isolations(p.noNetwork, p.ownProcesses)
	}
	var refused error
	for _, way := range ways {
		o, refusal := p.runWith(ctx, way)
		if refusal == nil || !isolated || !isRefusal(refusal) {
			if refusal != nil {
				o = outcome{state: State{ExitCode: -1}, err: fmt.Errorf("start the supervising process: %w", refusal)}
			}
			return o
		}
		refused = refusal
	}
	return outcome{state: State{ExitCode: -1}, err: fmt.Errorf("%s: %w: %w", p.isolation(), ErrNotSupported, refused)}
}

// runWith runs the command under a supervisor that is started in one way. The error says that there
// is no such supervisor; nothing was started then.
func (p *process) runWith(ctx context.Context, way *syscall.SysProcAttr) (outcome, error) {
	cmd, conn, err := p.startSupervisor(way)
	if err != nil {
		return outcome{}, err
	}
	defer conn.Close()

	enc := json.NewEncoder(conn)
	// An error means that the supervisor is gone; its end says the rest.
	_ = enc.Encode(order{Path: []byte(p.path), Argv: toBytes(p.argv), Dir: []byte(p.dir), Env: toBytes(dedupEnv(p.env)), OwnProcesses: p.ownProcesses})

	var canceled bool
	waited := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-waited:
			return
		case <-ctx.Done():
		}
		canceled = true
		_ = enc.Encode(order{Stop: true, Grace: p.grace})
		select {
		case <-waited:
		case <-time.After(p.grace + reapLimit + 5*time.Second):
			_ = cmd.Process.Kill() // it hangs itself
		}
	})
	var n notice
	reply, readErr := bufio.NewReader(conn).ReadBytes('\n')
	if readErr == nil {
		readErr = json.Unmarshal(reply, &n)
	}
	// What ended by itself was not canceled, whatever happens while its output is written.
	ended := readErr == nil
	if ended {
		close(waited)
		watch.Wait()
	}
	waitErr := cmd.Wait()
	if !ended {
		close(waited)
		watch.Wait()
	}

	o := outcome{canceled: canceled, state: State{ExitCode: -1, CPU: n.CPU, PeakMemoryBytes: n.Peak}}
	switch {
	case n.Refused:
		return outcome{}, startError(n.Error, n.Errno)
	case readErr != nil:
		// The supervisor was killed. Its session is what can still be found.
		killSession(cmd.Process.Pid)
		o.err = fmt.Errorf("the supervising process ended: %w", errors.Join(waitErr, nonEOF(readErr)))
	case n.Error != "":
		o.err = startError(n.Error, n.Errno)
	default:
		status := syscall.WaitStatus(n.Status)
		if status.Signaled() {
			o.state.Signal = unix.SignalName(status.Signal())
		} else {
			o.state.ExitCode = status.ExitStatus()
		}
		switch {
		case len(n.LeftBehind) > 0:
			o.err = fmt.Errorf("processes %v did not end after SIGKILL", n.LeftBehind)
		case errors.Is(waitErr, exec.ErrWaitDelay):
			o.err = errors.New("its output did not end")
		}
	}
	return o, nil
}

func startError(text string, errno syscall.Errno) error {
	if errno != 0 {
		return fmt.Errorf("%s: %w", text, errno)
	}
	return errors.New(text)
}

func nonEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// dedupEnv keeps the last of equal keys; what a program makes of two is its own secret.
func dedupEnv(env []string) []string {
	seen := make(map[string]bool, len(env))
	out := make([]string, 0, len(env))
	for _, kv := range slices.Backward(env) {
		key := kv
		for i := range len(kv) {
			if kv[i] == '=' {
				key = kv[:i]
				break
			}
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, kv)
		}
	}
	slices.Reverse(out)
	return out
}

// isolations lists the ways into a new network or process namespace, the best first: as root;
// through a user namespace that keeps the rights to set up what is new; for a network alone,
// through one that does not.
func isolations(network, processes bool) []*syscall.SysProcAttr {
	var flags uintptr
	var rights []uintptr
	if network {
		flags, rights = flags|unix.CLONE_NEWNET, append(rights, unix.CAP_NET_ADMIN)
	}
	if processes {
		flags, rights = flags|unix.CLONE_NEWPID|unix.CLONE_NEWNS, append(rights, unix.CAP_SYS_ADMIN)
	}
	var list []*syscall.SysProcAttr
	if os.Geteuid() == 0 {
		list = append(list, &syscall.SysProcAttr{Setsid: true, Cloneflags: flags})
	}
	user := syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  unix.CLONE_NEWUSER | flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	admin := user
	admin.AmbientCaps = rights
	list = append(list, &admin)
	if !processes {
		list = append(list, &user)
	}
	return list
}

func isRefusal(err error) bool {
	for _, no := range []error{unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSPC, unix.EUSERS, unix.ENOSYS} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// startSupervisor starts this executable again, in a session and, if asked for, in namespaces of its
// own.
func (p *process) startSupervisor(attr *syscall.SysProcAttr) (*exec.Cmd, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	env := []string{"GOMAXPROCS=1"}
	if p.mark != "" {
		env = append(env, p.mark)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "lifeline"), os.NewFile(uintptr(fds[1]), "lifeline")
	defer theirs.Close()
	cmd := &exec.Cmd{
		// Not os.Executable: the file may have been replaced by an update since.
		Path:        "/proc/self/exe",
		Args:        []string{supervisorName},
		Env:         env,
		Dir:         "/",
		Stdin:       p.stdinReader(),
		Stdout:      p.stdout,
		Stderr:      p.stderr,
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: attr,
		WaitDelay:   outputLimit,
	}
	if attr.UidMappings != nil {
		defer allowMapping()()
	}
	if err := cmd.Start(); err != nil {
		ours.Close() //nolint:errcheck // Nothing was written.
		return nil, nil, err
	}
	return cmd, ours, nil
}

// mapping is held while a child of a process that is closed to others gets its user namespace.
var mapping sync.Mutex

// allowMapping opens this process for as long as it takes to write the map of users of a child,
// which has its memory until it becomes a program: that file belongs to the superuser else. See
// package secret for who closes it. Commands that are running meanwhile are in such namespaces
// themselves, from where this process cannot be looked into in any case.
func allowMapping() (done func()) {
	if os.Geteuid() == 0 {
		return func() {}
	}
	mapping.Lock()
	if open, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || open != 0 {
		return mapping.Unlock
	}
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	return func() {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		mapping.Unlock()
	}
}

// supervise is the life of a supervisor.
func supervise() {
	// The death signal of the command and the rights that are given up below belong to a thread.
	runtime.LockOSThread()
	debug.SetGCPercent(50)
	unix.CloseOnExec(lifeline)
	conn := os.NewFile(lifeline, "lifeline")
	dec := json.NewDecoder(conn)
	var first order
	if dec.Decode(&first) != nil {
		os.Exit(1) //nolint:forbidigo // A supervisor is a program; its parent is gone.
	}
	n := new(supervisor).run(dec, first)
	_ = json.NewEncoder(conn).Encode(n)
	os.Exit(0) //nolint:forbidigo // A supervisor is a program.
}

type supervisor struct {
	main   int
	status syscall.WaitStatus
	peak   int64
}

func (s *supervisor) run(dec *json.Decoder, first order) notice {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return notice{Error: "adopt orphans", Errno: errnoOf(err)}
	}
	if first.OwnProcesses {
		if step, err := hideProcesses(); err != nil {
			return notice{Error: step, Errno: errnoOf(err), Refused: true}
		}
	}
	loopbackUp()
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)

	pid, err := syscall.ForkExec(string(first.Path), toStrings(first.Argv), &syscall.ProcAttr{
		Dir:   string(first.Dir),
		Env:   toStrings(first.Env),
		Files: []uintptr{0, 1, 2},
		// A session of its own: "kill 0" in a script means the script. The death signal is
		// for a supervisor that is killed.
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return notice{Error: "start", Errno: errnoOf(err)}
	}
	s.main = pid
	preferForOOM(pid)
	releaseStdio()

	stop := make(chan order)
	go func() {
		for {
			var next order
			err := dec.Decode(&next)
			if err != nil {
				next = order{Orphan: true}
			}
			stop <- next
			if err != nil {
				return
			}
		}
	}()
	mainEnded := make(chan struct{})
	allEnded := make(chan struct{})
	go s.reap(mainEnded, allEnded)

	sample := time.NewTimer(5 * time.Millisecond)
	var kill, give <-chan time.Time
	pause := time.Millisecond
	var left []int
	orphan := false // there is no parent that could be told what is left
	for done := false; !done; {
		select {
		case <-allEnded:
			done = true
		case <-mainEnded:
			mainEnded = nil
			kill = time.After(0)
		case o := <-stop:
			if orphan = o.Orphan; orphan || o.Grace <= 0 {
				kill = time.After(0)
				break
			}
			signalAll(descendants(), unix.SIGTERM)
			if kill == nil {
				kill = time.After(o.Grace)
			}
		case <-signals:
			kill = time.After(0)
		case <-kill:
			// Again and again, because what is killed may just have forked.
			signalAll(descendants(), unix.SIGKILL)
			kill = time.After(pause)
			pause = min(2*pause, 100*time.Millisecond)
			if give == nil {
				give = time.After(reapLimit)
			}
		case <-give:
			if orphan {
				give = nil
				break // what hangs now may end later
			}
			left = descendants()
			done = true
		case <-sample.C:
			sample.Reset(s.measure())
		}
	}
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &usage) == nil {
		s.peak = max(s.peak, usage.Maxrss*1024)
	}
	return notice{
		Status: uint32(s.status), Peak: s.peak, LeftBehind: left,
		CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
	}
}

// reap waits for every process that is or becomes a child.
func (s *supervisor) reap(mainEnded, allEnded chan<- struct{}) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no children: nothing can come any more
			close(allEnded)
			return
		case pid == s.main:
			s.status = status
			close(mainEnded)
		}
	}
}

// measure takes a sample of the tree and returns when to take the next. Measuring may
// cost two percent of a processor, not more: in a tree with much memory it is slow.
func (s *supervisor) measure() time.Duration {
	start := time.Now()
	s.peak = treeMemory(descendants(), s.peak)
	cost := time.Since(start)
	return min(max(50*time.Millisecond, 50*cost), 2*time.Second)
}

func errnoOf(err error) syscall.Errno {
	errno, _ := errors.AsType[syscall.Errno](err)
	return errno
}

// hideProcesses shows the processes of the new namespace in /proc, where those of the machine are
// still, and gives up the rights to take that away again. What is mounted on the machine later
// appears here too, but nothing the other way round.
func hideProcesses() (step string, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return "part from the mounts of the machine", err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "mount /proc", err // as in containers that hide parts of theirs
	}
	for _, right := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, right, 0, 0, 0); err != nil && os.Geteuid() == 0 {
			return "give up rights", err
		}
	}
	return "", nil
}

// preferForOOM makes the system, when memory runs out, end the command rather than kiln.
func preferForOOM(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("300"), 0)
}

// releaseStdio lets go of the command's input and output, so that they end when the command closes
// them.
func releaseStdio() {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for fd := range 3 {
		_ = unix.Dup3(int(null.Fd()), fd, 0)
	}
}

// loopbackUp switches on the loopback interface of a new network; build tools talk to themselves.
// Outside a new network it is on already, or the right to change it is missing.
func loopbackUp() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd) //nolint:errcheck // Nothing was written.
	req, err := unix.NewIfreq("lo")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req) != nil || req.Uint16()&unix.IFF_UP != 0 {
		return
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
