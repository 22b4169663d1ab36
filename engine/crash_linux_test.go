package engine_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
)

const (
	crashDirEnv  = "KILN_ENGINE_CRASH_DIR"
	crashMarkEnv = "KILN_ENGINE_CRASH_MARK"
	crashJobs    = 40
)

func init() { helpers["crash"] = helperCrash }

// helperCrash runs jobs, each with processes of its own, that need each other in groups.
func helperCrash() error {
	dir, mark := os.Getenv(crashDirEnv), os.Getenv(crashMarkEnv)
	var jobs []engine.Job
	for i := range crashJobs {
		job := engine.Job{ID: fmt.Sprint("job", i), Digest: "1", Resources: engine.Resources{MemoryBytes: int64(i % 7)}}
		if i >= 5 {
			job.Needs = []string{fmt.Sprint("job", i-5)}
		}
		jobs = append(jobs, job)
	}
	report, err := engine.Run(context.Background(), jobs, engine.Options{
		Dir: filepath.Join(dir, "state"), CPU: 3, MemoryBytes: 12, DiskBytes: gb,
		Runner: engine.Local(func(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
			for _, earlier := range a.Earlier {
				if _, err := os.Stat(filepath.Join(earlier, "object")); err != nil {
					return engine.Result{}, err
				}
			}
			if err := os.WriteFile(filepath.Join(a.Dir, "object"), nil, 0o666); err != nil {
				return engine.Result{}, err
			}
			a.Stage("work")
			cmd := run.Cmd{
				Argv: []string{"sh", "-c", `echo start $1 >>"$2"; (setsid sleep 100 &) & sleep 0.02; echo end $1 >>"$2"`, "sh", a.Job.ID, filepath.Join(dir, "ran")},
				Env:  []string{"PATH=/usr/bin:/bin", mark},
			}
			state, err := cmd.Run(ctx)
			return engine.Result{PeakMemoryBytes: state.PeakMemoryBytes / 1e9}, err
		}),
	})
	if err == nil && !report.OK() {
		err = fmt.Errorf("%+v", statuses(report))
	}
	return err
}

func alive(t *testing.T, mark string) int {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("\x00"+mark+"\x00")) {
			n++
		}
	}
	return n
}

// TestKill kills a run again and again at random moments, until it comes to its end.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	mark := "KILN_ENGINE_TEST_MARK=" + rand.Text()
	ran := func() (starts map[string]int) {
		text, err := os.ReadFile(filepath.Join(dir, "ran"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		starts = make(map[string]int)
		for line := range strings.Lines(string(text)) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "start "); ok {
				starts[id]++
			}
		}
		return starts
	}
	doneStarts := make(map[string]int) // how often a job had been started when it was first seen done
	kills := 0
	for {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"=crash", crashDirEnv+"="+dir, crashMarkEnv+"="+mark)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Later ones live longer, so that it comes to an end.
		killed := make(chan struct{})
		timer := time.AfterFunc(mathrand.N(300*time.Millisecond)+time.Duration(kills)*10*time.Millisecond, func() {
			_ = cmd.Process.Kill()
			close(killed)
		})
		err := cmd.Wait()
		ended := timer.Stop()
		if !ended {
			<-killed
		}
		for deadline := time.Now().Add(20 * time.Second); alive(t, mark) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d processes are left", alive(t, mark))
			}
		}
		state, stateErr := engine.ReadState(filepath.Join(dir, "state"))
		if stateErr != nil {
			t.Fatal(stateErr)
		}
		starts := ran()
		for id, n := range doneStarts {
			if starts[id] != n || state.Job(id).Status != engine.StatusDone {
				t.Fatalf("%s was done and is %s now, started %d times, then %d", id, state.Job(id).Status, n, starts[id])
			}
		}
		for _, j := range state.Jobs {
			if j.Status == engine.StatusDone {
				doneStarts[j.ID] = starts[j.ID]
			}
		}
		if err == nil {
			break
		}
		if ended {
			t.Fatalf("it ended by itself: %v\n%s", err, stderr.String())
		}
		kills++
	}
	if len(doneStarts) != crashJobs || kills == 0 {
		t.Errorf("%d of %d jobs are done after %d kills", len(doneStarts), crashJobs, kills)
	}
	t.Logf("%d kills", kills)
	entries, err := os.ReadDir(filepath.Join(dir, "state", "attempts"))
	if err != nil || len(entries) != crashJobs {
		t.Errorf("%d folders are left for %d jobs, %v", len(entries), crashJobs, err)
	}
}

// TestDiskFull: when nothing can be remembered any more the run ends, and goes on when there is
// room again.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		kilntest.Lacking(t, "mount", "mounting a small file system needs root")
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		return engine.Result{Outputs: json.RawMessage(`"` + strings.Repeat("x", 10_000) + `"`)}, nil
	})
	opts.Dir, opts.CPU = filepath.Join(dir, "state"), 2
	var jobs []engine.Job
	for i := range 15 {
		jobs = append(jobs, engine.Job{ID: fmt.Sprint("job", i), Digest: "1"})
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 150_000), 0o666); err != nil {
		t.Fatal(err)
	}
	report, err := engine.Run(t.Context(), jobs, opts)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "write the journal") {
		t.Fatalf("error %v, %v", err, statuses(report))
	}
	if n := report.Count(engine.StatusDone); n == 0 || n+report.Count(engine.StatusCanceled) != len(jobs) {
		t.Errorf("%v", statuses(report))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	report = mustRun(t, jobs, opts)
	if n := report.Count(engine.StatusReused); n == 0 || n+report.Count(engine.StatusDone) != len(jobs) {
		t.Errorf("%v", statuses(report))
	}
}
