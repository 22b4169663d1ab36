package report_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/report"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// work is a build of three rows that goes on when it is told to: one ends well at once, one fails
// then, and one after it.
type work struct {
	dir        string
	plan       record.Plan
	fail, rest chan struct{}
	ended      chan error
}

func startWork(t *testing.T) *work {
	t.Helper()
	w := &work{dir: t.TempDir(), plan: exllamav2(t), fail: make(chan struct{}), rest: make(chan struct{}), ended: make(chan error, 1)}
	w.plan.Rows = w.plan.Rows[:3]
	if err := record.WritePlan(w.dir, &w.plan); err != nil {
		t.Fatal(err)
	}
	var jobs []engine.Job
	for i := range w.plan.Rows {
		jobs = append(jobs, engine.Job{ID: w.plan.Rows[i].ID, Digest: "d", Resources: engine.Resources{CPU: 1, MemoryBytes: 1}})
	}
	running := make(chan struct{}, len(jobs))
	run := func(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
		running <- struct{}{}
		wait := map[string]chan struct{}{jobs[1].ID: w.fail, jobs[2].ID: w.rest}[try.Job.ID]
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
				return engine.Result{}, ctx.Err()
			}
		}
		if try.Job.ID == jobs[1].ID {
			return engine.Result{}, errors.New("compile: no such kernel " + hostile)
		}
		outputs, err := json.Marshal(record.Outputs{Files: []record.File{{Name: "x.whl", Size: 1 << 20}}, Test: "passed", Compiles: &record.Compiles{Calls: 4, Hits: 1, Misses: 3, Seconds: 6}})
		return engine.Result{PeakMemoryBytes: 1 << 30, Outputs: outputs}, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		_, err := engine.Run(ctx, jobs, engine.Options{Dir: w.dir, Runner: engine.Local(run), CPU: 3, MemoryBytes: 1 << 30, DiskBytes: 1 << 30})
		w.ended <- err
		close(w.ended)
	}()
	t.Cleanup(func() {
		cancel()
		for range w.ended {
		}
	})
	for range jobs {
		<-running
	}
	return w
}

// counts is what a report says of the states.
func counts(r *report.Report) string {
	text, _ := json.Marshal(r.Counts)
	return string(text)
}

// waitFor waits for the counts of a state folder.
func waitFor(t *testing.T, dir, want string) *report.Report {
	t.Helper()
	for range 200 {
		r, _, err := report.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(counts(r), want) {
			return r
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("never: %s", want)
	return nil
}

// TestRead follows a real build through its journal: running, failed, ended, and reused by the next.
func TestRead(t *testing.T) {
	w := startWork(t)
	r := waitFor(t, w.dir, `{"status":"running","rows":2}`)
	if !r.Active || !strings.HasPrefix(r.Summary(), "At work: 1 of 3 rows ended") {
		t.Errorf("%s", r.Summary())
	}
	close(w.fail)
	waitFor(t, w.dir, `{"status":"failed","rows":1}`)
	close(w.rest)
	if err := <-w.ended; err != nil {
		t.Fatal(err)
	}
	r, _, err := report.Read(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.Active || r.Summary() != "Finished: 3 of 3 rows ended, 1 failed." || r.Saved.Calls != 8 || r.Saved.Hits != 2 || len(r.Path) == 0 || r.Bytes != 2<<20 {
		t.Errorf("%s %+v %+v", r.Summary(), r.Saved, r.Path)
	}
	// The next run finds the first row as it was.
	_, err = engine.Run(t.Context(), []engine.Job{{ID: w.plan.Rows[0].ID, Digest: "d"}}, engine.Options{
		Dir: w.dir, CPU: 1, MemoryBytes: 1 << 30, DiskBytes: 1 << 30,
		Runner: engine.Local(func(context.Context, *engine.Attempt) (engine.Result, error) {
			return engine.Result{}, errors.New("run again")
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if r, _, err = report.Read(w.dir); err != nil || r.Saved.Rows != 1 || r.Summary() != "Finished: 1 of 1 row ended." {
		t.Errorf("%v %+v %s", err, r.Saved, r.Summary())
	}
	if err := os.WriteFile(filepath.Join(w.dir, "plan.json"), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := report.Read(w.dir); err == nil || !strings.Contains(err.Error(), "plan.json") {
		t.Errorf("a broken plan: %v", err)
	}
}

func get(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	rec.Header().Set("Access-Control-Allow-Origin", "*") // as the server does for its API
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(rec, req)
	if rec.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%s may be read by other sites", path)
	}
	return rec
}

// TestHandler: the page, the same for scripts, and nothing else.
func TestHandler(t *testing.T) {
	w := startWork(t)
	h := report.Handler(w.dir, nil)
	page := get(t, h, "/builds/")
	if page.Code != http.StatusOK || !strings.Contains(page.Body.String(), "Build of exllamav2 0.3.2") || !strings.Contains(page.Header().Get("Content-Security-Policy"), "script-src 'sha256-") {
		t.Errorf("%d %s", page.Code, page.Header())
	}
	state := get(t, h, "/builds/state.json")
	var got struct {
		Revision, Summary string
		Report            report.Report
	}
	if err := json.Unmarshal(state.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Revision == "" || !strings.Contains(page.Body.String(), `data-revision="`+got.Revision+`"`) || len(got.Report.Rows) != 3 || got.Summary == "" {
		t.Errorf("%+v", got)
	}
	if again := get(t, h, "/builds/state.json", "If-None-Match", state.Header().Get("ETag")); again.Code != http.StatusNotModified {
		t.Errorf("the same state: %d", again.Code)
	}
	for path, status := range map[string]int{"/builds": 302, "/builds/x": 404, "/builds/state.json/": 404, "/builds/journal.jsonl": 404, "/builds/../plan.json": 404} {
		if got := get(t, h, path); got.Code != status {
			t.Errorf("%s: %d", path, got.Code)
		}
	}
	// A folder without builds has a page that says so; a journal that cannot be read is no page.
	empty := t.TempDir()
	if got := get(t, report.Handler(empty, nil), "/builds/").Body.String(); !strings.Contains(got, "nothing was planned or built here") {
		t.Error(got)
	}
	if err := os.WriteFile(filepath.Join(empty, "journal.jsonl"), []byte("something else\nmore\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if bad := get(t, report.Handler(empty, nil), "/builds/state.json"); bad.Code != http.StatusInternalServerError || strings.Contains(bad.Body.String(), empty) {
		t.Errorf("%d %s", bad.Code, bad.Body)
	}
}

// TestBrowser looks at a plan, at a build of 88 rows and at one that goes on meanwhile in Chromium:
// light and dark, wide and narrow, with the keyboard and without script; axe finds nothing. The
// pictures are in .cache/screenshots.
func TestBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a browser")
	}
	chromium, node, modules := kilntest.Browser(t)
	dir := t.TempDir()
	for name, r := range map[string]*report.Report{"plan": report.New(report.Input{Plan: exllamav2(t)}), "building": report.New(building(t))} {
		if err := os.WriteFile(filepath.Join(dir, name+".html"), html(t, r), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := startWork(t)
	builds := report.Handler(w.dir, nil)
	served := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path { // what the script asks the build to do
		case "/fail":
			close(w.fail)
		case "/rest":
			close(w.rest)
		default:
			builds.ServeHTTP(rw, r)
		}
	}))
	defer served.Close()
	pictures, err := filepath.Abs("../../.cache/screenshots")
	if err == nil {
		err = os.MkdirAll(pictures, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), node, "testdata/check.mjs", dir, served.URL, chromium, pictures, modules).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var result struct{ Problems []string }
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range result.Problems {
		t.Error(p)
	}
}
