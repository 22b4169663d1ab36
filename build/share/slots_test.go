package share

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/build/launcher"
)

func isReady(w *slotWaiter) bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}

// TestSlotsProperty: whatever comes and goes, the sums never exceed the limits unless one runs
// alone, no unit runs twice at once, something always runs if anything waits, and in the end
// everybody has run.
func TestSlotsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpu, memory := rapid.IntRange(1, 8).Draw(t, "cpu"), int64(rapid.IntRange(1, 100).Draw(t, "memory"))
		p := newSlotPool(cpu, memory, map[string]int64{"file 1": 7})
		var open []*slotWaiter
		check := func() {
			var sumCPU, running int
			var sum int64
			units := map[string]int{}
			waiting := 0
			for _, w := range open {
				if !isReady(w) {
					waiting++
					continue
				}
				running++
				sumCPU += w.request.CPU
				sum += w.request.MemoryBytes
				if u := w.request.Unit; u != "" {
					units[u]++
				}
			}
			if running > 1 && (sumCPU > cpu || sum > memory) {
				t.Fatalf("%d at once use %d of %d processors and %d of %d bytes", running, sumCPU, cpu, sum, memory)
			}
			if running == 0 && waiting > 0 {
				t.Fatalf("%d wait, and nothing runs", waiting)
			}
			for u, n := range units {
				if n > 1 && p.units[u].misses < 2 {
					t.Fatalf("%s runs %d times at once", u, n)
				}
			}
		}
		leave := func(i int) {
			w := open[i]
			open = append(open[:i:i], open[i+1:]...)
			p.release(w, launcher.SlotReport{
				Result:          rapid.SampledFrom([]launcher.Outcome{launcher.Hit, launcher.Miss, ""}).Draw(t, "result"),
				PeakMemoryBytes: int64(rapid.IntRange(0, 120).Draw(t, "peak")),
			})
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "leave") {
				leave(rapid.IntRange(0, len(open)-1).Draw(t, "which")) // one that waits may go too: it was killed
			} else {
				open = append(open, p.request(launcher.SlotRequest{
					File: fmt.Sprintf("file %d", rapid.IntRange(0, 3).Draw(t, "file")), Unit: rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "unit"),
					CPU: rapid.IntRange(0, 10).Draw(t, "cpus"), MemoryBytes: int64(rapid.IntRange(0, 120).Draw(t, "bytes")),
				}))
			}
			check()
		}
		for len(open) > 0 {
			i := 0
			for !isReady(open[i]) {
				i++ // check has seen that one is
			}
			leave(i)
			check()
		}
		if p.running != 0 || p.used.CPU != 0 || p.used.MemoryBytes != 0 || len(p.waiting) != 0 {
			t.Fatalf("left behind: %d running, %+v", p.running, p.used)
		}
	})
}

// The largest goes first, smaller ones fill the gap, and after eight of them they wait.
func TestSlotsOrder(t *testing.T) {
	p := newSlotPool(2, 100, map[string]int64{"large": 80})
	request := func(file string, bytes int64) *slotWaiter {
		return p.request(launcher.SlotRequest{File: file, CPU: 1, MemoryBytes: bytes})
	}
	first := request("first", 60)
	large := request("large", 1) // counts with what was learned, and a tenth
	if large.request.MemoryBytes != 88 || isReady(large) {
		t.Fatalf("large counts %d bytes, ready %v", large.request.MemoryBytes, isReady(large))
	}
	for i := range passLimit {
		small := request("small", 10)
		if !isReady(small) {
			t.Fatalf("small one %d waits", i)
		}
		p.release(small, launcher.SlotReport{})
	}
	small := request("small", 10)
	if isReady(small) {
		t.Error("more than eight have passed the large one")
	}
	p.release(first, launcher.SlotReport{})
	if !isReady(large) || !isReady(small) {
		t.Errorf("large %v, small %v; want both", isReady(large), isReady(small))
	}
}

// Calls that may have one result wait for each other, until two results show that they do not.
func TestSlotsUnits(t *testing.T) {
	p := newSlotPool(8, 1000, nil)
	request := func() *slotWaiter {
		return p.request(launcher.SlotRequest{Unit: "binding.cpp", CPU: 1, MemoryBytes: 1})
	}
	a, b, c, d := request(), request(), request(), request()
	ready := func() []bool { return []bool{isReady(a), isReady(b), isReady(c), isReady(d)} }
	if diff := cmp.Diff([]bool{true, false, false, false}, ready()); diff != "" {
		t.Error(diff)
	}
	p.release(a, launcher.SlotReport{Result: launcher.Miss})
	if diff := cmp.Diff([]bool{true, true, false, false}, ready()); diff != "" {
		t.Error(diff)
	}
	p.release(b, launcher.SlotReport{Result: launcher.Miss})
	if diff := cmp.Diff([]bool{true, true, true, true}, ready()); diff != "" {
		t.Error(diff)
	}
}

// A slot is held as long as the connection: a launcher that is killed gives it back, one that waits
// leaves the queue.
func TestSlotsServe(t *testing.T) {
	p := newSlotPool(1, 100, nil)
	path := filepath.Join(t.TempDir(), "slots")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(listener)
	}()
	dial := func() (net.Conn, chan bool) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(conn).Encode(launcher.SlotRequest{File: "f", CPU: 1, MemoryBytes: 1}); err != nil {
			t.Fatal(err)
		}
		granted := make(chan bool, 1)
		go func() {
			n, _ := conn.Read(make([]byte, 8))
			granted <- n > 0
		}()
		return conn, granted
	}
	one, granted := dial()
	if !<-granted {
		t.Fatal("no slot for the first")
	}
	two, _ := dial()
	three, granted3 := dial()
	two.Close() // killed while it waits
	if err := json.NewEncoder(one).Encode(launcher.SlotReport{Result: launcher.Miss, PeakMemoryBytes: 42}); err != nil {
		t.Fatal(err)
	}
	one.Close()
	if !<-granted3 {
		t.Error("no slot for the third")
	}
	if got := p.learned()["f"]; got != 42 {
		t.Errorf("learned a peak of %d, want 42", got)
	}
	// What is open at the end is closed, and waited for.
	listener.Close()
	<-served
	three.Close()
}

func TestPeaksFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "peaks.json")
	if got := readPeaks(path); got != nil {
		t.Errorf("no file: %v", got)
	}
	want := map[string]int64{"a": 1, "b": 2}
	if err := writePeaks(path, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, readPeaks(path)); diff != "" {
		t.Error(diff)
	}
}
