package share

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// die ends a pool as a kill would: nothing is written, the system frees the lock.
func (p *slotPool) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.again != nil {
		p.again.Stop()
	}
	_ = p.machine.file.Close()
	_ = p.machine.ledger.Close()
	p.machine = nil
}

func joined(t interface{ Fatal(args ...any) }, dir string, own, limit slotSum) *slotPool {
	p := newSlotPool(own.CPU, own.MemoryBytes, nil)
	if err := p.join(dir, limit); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMachineProperty: whatever comes, goes and is killed, the kilns of a machine together stay
// within its limits unless one call runs alone, something always runs if anything waits, and in the
// end everybody has run.
func TestMachineProperty(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		limit := slotSum{rapid.IntRange(1, 6).Draw(r, "cpu"), int64(rapid.IntRange(1, 100).Draw(r, "memory"))}
		steps := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) machineStep {
			return machineStep{
				rapid.IntRange(0, 9).Draw(r, "what"), rapid.IntRange(0, 100).Draw(r, "which"), rapid.SampledFrom([]string{"", "u"}).Draw(r, "unit"),
				slotSum{rapid.IntRange(0, 8).Draw(r, "cpus"), int64(rapid.IntRange(0, 120).Draw(r, "bytes"))},
			}
		}), 1, 40).Draw(r, "steps")
		var err error
		synctest.Test(t, func(t *testing.T) { // rapid has to stay outside
			err = runMachine(t, filepath.Join(root, fmt.Sprint(n)), limit, steps)
		})
		if err != nil {
			r.Fatal(err)
		}
	})
}

// machineStep is one thing that happens: a kiln comes or is killed, a call comes or goes.
type machineStep struct {
	what, which int
	unit        string
	size        slotSum
}

func runMachine(t *testing.T, dir string, limit slotSum, steps []machineStep) error {
	type call struct {
		*slotWaiter
		pool *slotPool
	}
	var pools []*slotPool
	var open []call
	defer func() {
		for _, p := range pools {
			p.leave()
		}
	}()
	leave := func(i int) {
		c := open[i]
		open = append(open[:i:i], open[i+1:]...)
		c.pool.release(c.slotWaiter, launcher.SlotReport{})
	}
	check := func() error {
		// Every kiln has looked, and none waits for its turn any more.
		time.Sleep(machinePatience + 4*machinePoll)
		var sum slotSum
		running, waiting := 0, 0
		for _, c := range open {
			if !isReady(c.slotWaiter) {
				waiting++
				continue
			}
			running++
			sum.CPU += c.request.CPU
			sum.MemoryBytes += c.request.MemoryBytes
		}
		if running > 1 && (sum.CPU > limit.CPU || sum.MemoryBytes > limit.MemoryBytes) {
			return fmt.Errorf("%d at once use %+v of %+v", running, sum, limit)
		}
		if running == 0 && waiting > 0 {
			return fmt.Errorf("%d wait, and nothing runs", waiting)
		}
		return nil
	}
	for _, s := range steps {
		switch {
		case len(pools) == 0 || s.what == 0 && len(pools) < 4:
			pools = append(pools, joined(t, dir, slotSum{1 + s.which%limit.CPU, limit.MemoryBytes}, limit))
		case s.what == 1: // a kiln is killed, and its calls with it
			i := s.which % len(pools)
			dead := pools[i]
			pools = append(pools[:i:i], pools[i+1:]...)
			dead.die()
			var rest []call
			for _, c := range open {
				if c.pool != dead {
					rest = append(rest, c)
				}
			}
			open = rest
		case s.what < 5 && len(open) > 0:
			leave(s.which % len(open)) // one that waits may go too: it was killed
		default:
			p := pools[s.which%len(pools)]
			open = append(open, call{p.request(launcher.SlotRequest{Unit: s.unit, CPU: s.size.CPU, MemoryBytes: s.size.MemoryBytes}), p})
		}
		if err := check(); err != nil {
			return err
		}
	}
	for len(open) > 0 {
		i := 0
		for !isReady(open[i].slotWaiter) {
			i++ // check has seen that one is
		}
		leave(i)
		if err := check(); err != nil {
			return err
		}
	}
	for _, p := range pools {
		if p.running != 0 || p.used != (slotSum{}) {
			return fmt.Errorf("left behind: %d running, %+v", p.running, p.used)
		}
		p.leave()
	}
	pools = nil
	// Claims of the dead are removed by who comes next.
	joined(t, dir, limit, limit).leave()
	if claims, _ := filepath.Glob(filepath.Join(dir, "*"+claimSuffix)); len(claims) > 0 {
		return fmt.Errorf("left behind: %q", claims)
	}
	return nil
}

// A call that needs the whole machine gets its turn although another kiln always has something
// smaller, and a kiln without a call at work gets its first slot before the other one gets another.
func TestMachineTurns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slots")
	synctest.Test(t, func(t *testing.T) {
		limit := slotSum{2, 100}
		a, b := joined(t, dir, limit, limit), joined(t, dir, limit, limit)
		defer a.leave()
		defer b.leave()
		small := launcher.SlotRequest{CPU: 1, MemoryBytes: 10}
		running := []*slotWaiter{a.request(small), a.request(small)}
		var queue []*slotWaiter
		for range 20 {
			queue = append(queue, a.request(small))
		}
		time.Sleep(2 * machinePoll)
		first := b.request(small)
		if isReady(first) {
			t.Fatal("a third call on two processors")
		}
		a.release(running[0], launcher.SlotReport{})
		time.Sleep(2 * machinePoll)
		if !isReady(first) || isReady(queue[0]) {
			t.Fatalf("the other kiln's first call: %v, the next of the same: %v", isReady(first), isReady(queue[0]))
		}
		// b has one at work, and wants everything next.
		large := b.request(launcher.SlotRequest{CPU: 2, MemoryBytes: 100})
		b.release(first, launcher.SlotReport{})
		running = running[1:]
		ended := 0
		for !isReady(large) {
			for _, w := range queue {
				if isReady(w) {
					running = append(running, w)
				}
			}
			if len(running) == 0 {
				t.Fatal("nothing runs, and the large one does not start")
			}
			a.release(running[0], launcher.SlotReport{})
			queue = slicesWithout(queue, running[0])
			running = nil
			ended++
			time.Sleep(time.Second)
		}
		if ended > 12 {
			t.Errorf("the large call began after %d others", ended)
		}
		time.Sleep(time.Second)
		for _, w := range queue {
			if isReady(w) {
				t.Error("beside a call that needs the whole machine another one runs")
			}
		}
		b.release(large, launcher.SlotReport{})
		time.Sleep(2 * machinePoll)
		if !isReady(queue[0]) {
			t.Error("what waited for the large call waits still")
		}
	})
}

func slicesWithout(all []*slotWaiter, one *slotWaiter) []*slotWaiter {
	var out []*slotWaiter
	for _, w := range all {
		if w != one {
			out = append(out, w)
		}
	}
	return out
}

// A kiln that is stopped does not hold up the others for long.
func TestMachineStopped(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slots")
	synctest.Test(t, func(t *testing.T) {
		limit := slotSum{1, 100}
		a, b := joined(t, dir, limit, limit), joined(t, dir, limit, limit)
		defer a.leave()
		defer b.leave()
		one := a.request(launcher.SlotRequest{CPU: 1})
		waits := b.request(launcher.SlotRequest{CPU: 1})
		next := a.request(launcher.SlotRequest{CPU: 1})
		b.mu.Lock()
		b.again.Stop() // its clock stands still
		b.mu.Unlock()
		time.Sleep(time.Millisecond) // it has waited longer
		a.release(one, launcher.SlotReport{})
		if time.Sleep(machinePoll); isReady(next) {
			t.Error("it was the other's turn")
		}
		if time.Sleep(machineBeat); !isReady(next) || isReady(waits) {
			t.Errorf("after the last sign of the other: %v, %v", isReady(next), isReady(waits))
		}
	})
}

// What a kiln believes of the machine outlives those that measured before it, and a folder that
// cannot be used is no machine.
func TestMachineLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "slots")
	a := joined(t, dir, slotSum{1, 10}, slotSum{8, 100})
	b := joined(t, dir, slotSum{1, 10}, slotSum{2, 500})
	a.leave()
	c := joined(t, dir, slotSum{1, 10}, slotSum{1, 1})
	if diff := cmp.Diff(slotSum{8, 500}, c.claim.Limit); diff != "" {
		t.Error(diff)
	}
	b.leave()
	c.leave()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := newSlotPool(1, 1, nil).join(file, slotSum{1, 1}); err == nil {
		t.Error("a file was taken for a folder")
	}
	// One that loses the folder goes on alone.
	d := joined(t, dir, slotSum{2, 10}, slotSum{2, 10})
	os.RemoveAll(dir)
	if w := d.request(launcher.SlotRequest{CPU: 1}); !isReady(w) || d.machine != nil {
		t.Errorf("without a folder: ready %v, %v", isReady(w), d.machine)
	}
}

func TestRunDir(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dead, lock, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	other := filepath.Join(temp, runPrefix+"other")
	if err := os.Mkdir(other, 0o777); err != nil {
		t.Fatal(err)
	}
	alive, lock, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	again, lock2, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock2.Close()
	for dir, want := range map[string]bool{dead: false, other: true, alive: true, again: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
}

func FuzzParseClaim(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-claim/1","running":1,"cpu":2,"memory_bytes":3,"limit":{"cpu":4,"memory_bytes":5},"wanted":"2026-01-01T00:00:00Z","beat":"2026-01-01T00:00:01Z"}`))
	f.Add([]byte(`{"format":"kiln-claim/1","running":-1,"cpu":-2,"memory_bytes":-9223372036854775808}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		c, ok := parseClaim(text)
		if !ok {
			return
		}
		own := claim{Limit: slotSum{2, 3}}
		o := own.sum([]claim{c, {Running: 1, slotSum: slotSum{1, 1}}}, time.Unix(1767225602, 0))
		if o.running < 1 || o.CPU < 1 || o.MemoryBytes < 1 || o.limit.CPU < 2 || o.limit.MemoryBytes < 3 {
			t.Errorf("%s makes %+v", text, o)
		}
	})
}

const (
	poolEnv   = "KILN_TEST_POOL"   // the folder of the machine
	socketEnv = "KILN_TEST_SOCKET" // of the child
)

// TestMachineChild is a kiln of TestMachineKill: a pool of one processor that serves until it is
// killed.
func TestMachineChild(t *testing.T) {
	dir := os.Getenv(poolEnv)
	if dir == "" {
		return
	}
	p := joined(t, dir, slotSum{1, 100}, slotSum{1, 100})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", os.Getenv(socketEnv))
	if err != nil {
		t.Fatal(err)
	}
	p.serve(listener)
}

// TestMachineKill: two kilns on a machine of one processor. While one has it the other waits, and a
// kill -9 of a launcher or of a kiln gives it back.
func TestMachineKill(t *testing.T) {
	sockets, err := os.MkdirTemp("", "kiln-") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	dir := filepath.Join(t.TempDir(), "slots")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type kiln struct {
		*exec.Cmd
		socket string
	}
	start := func(name string) kiln {
		k := kiln{exec.CommandContext(t.Context(), self, "-test.run=^TestMachineChild$"), filepath.Join(sockets, name)}
		k.Env = append(os.Environ(), poolEnv+"="+dir, socketEnv+"="+k.socket)
		if err := k.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Process.Kill(); _ = k.Wait() })
		return k
	}
	// A launcher is a connection that asks.
	type call struct {
		net.Conn
		granted chan bool
	}
	ask := func(k kiln) call {
		var conn net.Conn
		waitFor(t, func() bool {
			var err error
			conn, err = (&net.Dialer{}).DialContext(t.Context(), "unix", k.socket)
			return err == nil
		})
		t.Cleanup(func() { conn.Close() })
		if err := json.NewEncoder(conn).Encode(launcher.SlotRequest{File: "f", CPU: 1, MemoryBytes: 1}); err != nil {
			t.Fatal(err)
		}
		c := call{conn, make(chan bool, 1)}
		go func() {
			n, _ := conn.Read(make([]byte, 8))
			c.granted <- n > 0
		}()
		return c
	}
	granted := func(c call) {
		t.Helper()
		select {
		case ok := <-c.granted:
			if !ok {
				t.Fatal("the connection ended")
			}
		case <-time.After(time.Minute):
			t.Fatal("no slot")
		}
	}
	// state waits until the claims say so many run and wait.
	state := func(running, wanted int) {
		t.Helper()
		waitFor(t, func() bool {
			files, _ := filepath.Glob(filepath.Join(dir, "*"+claimSuffix))
			var r, w int
			for _, f := range files {
				if text, err := os.ReadFile(f); err == nil {
					if c, ok := parseClaim(text); ok {
						r += c.Running
						if !c.Wanted.IsZero() {
							w++
						}
					}
				}
			}
			return r == running && w == wanted
		})
	}

	a, b := start("a"), start("b")
	one := ask(a)
	granted(one)
	two := ask(b)
	state(1, 1)
	if len(two.granted) > 0 {
		t.Fatal("two calls at once on one processor")
	}
	one.Close() // its launcher is killed
	granted(two)
	state(1, 0)

	three := ask(a)
	state(1, 1)
	if err := b.Process.Kill(); err != nil { // kiln is killed, its launchers are not
		t.Fatal(err)
	}
	granted(three)

	// The next kiln waits for the one that is left, and gets the processor when that is killed
	// while another waits.
	c := start("c")
	four := ask(c)
	waitFor(t, func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*"+claimSuffix))
		text, err := os.ReadFile(dirFile(files, c.Process.Pid))
		got, ok := parseClaim(text)
		return err == nil && ok && !got.Wanted.IsZero()
	})
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	granted(four)
	waitFor(t, func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*"+claimSuffix))
		return len(files) == 1 // the dead are forgotten
	})
}

func dirFile(files []string, pid int) string {
	for _, f := range files {
		if strings.HasPrefix(filepath.Base(f), fmt.Sprintf("%d-", pid)) {
			return f
		}
	}
	return ""
}

// waitFor waits for something that other processes do.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}
