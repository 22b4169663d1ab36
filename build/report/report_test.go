package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/report"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

const hostile = `</style></script><script>alert(1)</script>"'&<img src=x onerror=alert(1)>`

var begin = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// exllamav2 is the release matrix of ExLlamaV2, 88 rows.
func exllamav2(t testing.TB) record.Plan {
	t.Helper()
	text, err := os.ReadFile("../../examples/exllamav2/packages.yml")
	if err != nil {
		t.Fatal(err)
	}
	file, found := matrix.Parse("packages.yml", text)
	if found.HasErrors() {
		t.Fatal(found)
	}
	plan := file.Plan(matrix.Options{})
	if len(plan.Rows) != 88 {
		t.Fatalf("%d rows", len(plan.Rows))
	}
	return record.Plan{Rows: plan.Rows, Skipped: plan.Skipped}
}

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

// finished is a row that succeeded between two seconds of the build, negative ones before it.
func finished(id string, from, to, hits, calls int) engine.JobState {
	outputs, _ := json.Marshal(record.Outputs{
		Files: []record.File{{Name: id + ".whl", Size: 25 << 20}}, Test: "passed",
		Compiles: &record.Compiles{Calls: calls, Hits: hits, Misses: calls - hits, Seconds: float64(calls-hits) * 10},
	})
	return engine.JobState{
		ID: id, Current: true, Status: engine.StatusDone, Attempt: 1, Started: at(from), Ended: at(to), PeakMemoryBytes: 3 << 30,
		Finished: &engine.Finished{Attempt: 1, Time: at(to), Wall: time.Duration(to-from) * time.Second, Result: engine.Result{PeakMemoryBytes: 3 << 30, Outputs: outputs}},
	}
}

// building is a build of the 88 rows at its fortieth minute, with every state that a row can have.
func building(t testing.TB) report.Input {
	t.Helper()
	in := report.Input{Plan: exllamav2(t), Active: true, State: &engine.State{Started: begin, PID: 7, Host: "builder"}}
	add := func(j engine.JobState) { in.State.Jobs = append(in.State.Jobs, j) }
	for i := range in.Plan.Rows {
		row := &in.Plan.Rows[i]
		switch {
		case strings.HasPrefix(row.OS, "windows"):
			add(engine.JobState{ID: row.ID, Current: true, Status: engine.StatusSkipped, Attempt: 1, Started: at(1), Ended: at(1), Reason: "kiln does not build win_amd64 rows"})
		case row.CUDA == "11.8.0":
			add(finished(row.ID, -7000-i, -6000, 0, 44))
		case row.CUDA == "12.1.0":
			n := len(in.State.Jobs)
			add(finished(row.ID, 2+n*40, 2+(n+1)*40, 40, 44))
		case row.CUDA == "12.4.0" && row.Python == "3.10":
			add(engine.JobState{
				ID: row.ID, Current: true, Status: engine.StatusFailed, Attempt: 3, Stage: "compile", Started: at(100), Ended: at(300), PeakMemoryBytes: 60 << 30, Cause: engine.CauseMemory,
				Reason: row.ID + ": compile: killed for memory: " + hostile + "\n  build with --jobs 1\n  log: .kiln/attempts/x/log",
			})
		case row.CUDA == "12.4.0" && row.Python == "3.11":
			add(engine.JobState{ID: row.ID, Current: true, Status: engine.StatusRunning, Attempt: 1, Stage: "compile", Done: 12, Total: 44, Unit: "files", Started: at(2000)})
		case row.CUDA == "12.4.0" && row.Python == "3.12":
			add(engine.JobState{ID: row.ID, Current: true, Status: engine.StatusCanceled, Attempt: 1, Started: at(3), Ended: at(4), Cause: engine.CauseCanceled, Reason: "canceled by a person"})
		case row.ROCm != "":
			// was not asked for
		default:
			add(engine.JobState{ID: row.ID, Current: true, Status: engine.StatusPending, Learned: engine.Learned{Wall: 5 * time.Minute, PeakMemoryBytes: 4 << 30}})
		}
	}
	add(engine.JobState{ID: "not-in-the-plan-" + hostile, Current: true, Status: engine.StatusPending})
	add(engine.JobState{ID: "of-an-earlier-run", Status: engine.StatusDone})
	return in
}

var style = regexp.MustCompile(`(?s)<style>.*</style>|content="default-src[^"]*"`)

func html(t testing.TB, r *report.Report) []byte {
	t.Helper()
	var page bytes.Buffer
	if err := r.WriteHTML(&page, at(2400)); err != nil {
		t.Fatal(err)
	}
	return page.Bytes()
}

// picture is the matrix of a page in letters, the first ones of states.
func picture(page []byte) string {
	var out strings.Builder
	for _, table := range regexp.MustCompile(`(?s)<table class="matrix">(.*?)</table>`).FindAllSubmatch(page, -1) {
		for _, line := range regexp.MustCompile(`(?s)<tr>(.*?)</tr>`).FindAllSubmatch(table[1], -1) {
			for _, cell := range regexp.MustCompile(`(?s)<t[hd][^>]*>(.*?)</t[hd]>`).FindAllSubmatch(line[1], -1) {
				text := string(cell[1])
				if strings.Contains(text, "class=") {
					marks := ""
					for _, m := range regexp.MustCompile(`class="cell (\w+)"`).FindAllStringSubmatch(text, -1) {
						marks += m[1] + " "
					}
					text = strings.TrimSpace(marks)
				}
				fmt.Fprintf(&out, "%-12s ", text)
			}
			out.WriteString("\n")
		}
	}
	return regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n")
}

// TestGolden compares what is shown of 88 rows, and the page and the facts of a small build, with
// files.
func TestGolden(t *testing.T) {
	plan := exllamav2(t)
	history := &matrix.History{Rows: map[string]matrix.Measured{
		plan.Rows[0].ID: {Seconds: 600, PeakMemoryBytes: 4 << 30}, plan.Rows[1].ID: {Seconds: 900, PeakMemoryBytes: 5 << 30},
	}}
	planned := report.New(report.Input{Plan: plan, History: history})
	if len(planned.Path) != 1 || planned.Path[0].Seconds != 900 || planned.ExpectedRows == 0 || planned.Summary() != "88 rows to build." {
		t.Errorf("%+v %d %s", planned.Path, planned.ExpectedRows, planned.Summary())
	}
	kilntest.Golden(t, "testdata/plan.txt", []byte(picture(html(t, planned))))
	at40 := report.New(building(t))
	if got := at40.Summary(); got != "At work: 64 of 81 rows ended, 1 failed." {
		t.Error(got)
	}
	kilntest.Golden(t, "testdata/building.txt", []byte(picture(html(t, at40))))

	// A kiln that was killed leaves rows that seem to run.
	in := building(t)
	in.Active = false
	killed := report.New(in)
	if got := killed.Summary(); !strings.HasPrefix(got, "Stopped: 64 of 81") || strings.Contains(picture(html(t, killed)), "running") {
		t.Error(got)
	}

	// So does one that was interrupted, which says in the journal that it ended.
	in.State.Ended = at(2400)
	if got := report.New(in).Summary(); !strings.HasPrefix(got, "Stopped: 64 of 81") {
		t.Error(got)
	}

	failed := engine.JobState{
		ID: plan.Rows[3].ID, Current: true, Status: engine.StatusFailed, Attempt: 2, Stage: "compile", Started: at(1), Ended: at(9), Cause: engine.CauseFault,
		Reason: plan.Rows[3].ID + ": compile: error: " + hostile + "\n  look at " + hostile,
	}
	done := report.New(report.Input{
		Plan: record.Plan{Rows: plan.Rows[:4], Skipped: []matrix.Skip{{Row: plan.Rows[4], Reason: "exclude " + hostile}}},
		State: &engine.State{Started: begin, Ended: at(130), Jobs: []engine.JobState{
			finished(plan.Rows[0].ID, 1, 60, 0, 4), finished(plan.Rows[1].ID, -90, -50, 1, 4), finished(plan.Rows[2].ID, 61, 129, 3, 4), failed,
		}},
	})
	text, err := json.MarshalIndent(done, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	kilntest.Golden(t, "testdata/done.json", append(text, '\n'))
	kilntest.Golden(t, "testdata/done.html", style.ReplaceAll(html(t, done), nil))
	if page := string(html(t, report.New(report.Input{State: &engine.State{}}))); !strings.Contains(page, "nothing was planned or built here") {
		t.Error(page)
	}
}

// TestSelfContained: a page asks for nothing, runs nothing, and no text of a build becomes markup.
func TestSelfContained(t *testing.T) {
	page := string(html(t, report.New(building(t))))
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "<link") || strings.Count(page, "</style>") != 1 {
		t.Error("the page has a script or something of another file")
	}
	if found := regexp.MustCompile(`(?:src|href)="([^#"][^"]*)"|url\(|@import`).FindString(page); found != "" {
		t.Errorf("the page asks for %s", found)
	}
	if !strings.Contains(page, "&lt;img src=x onerror") {
		t.Error("the reason of the failure is not in the page")
	}
	if !strings.Contains(page, "default-src &#39;none&#39;; style-src &#39;sha256-") {
		t.Error("the page has no policy")
	}
}

// TestCriticalPath: the path goes back from what ended last over what it waited for.
func TestCriticalPath(t *testing.T) {
	rows := []matrix.Row{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}, {ID: "e"}, {ID: "reused"}}
	state := &engine.State{Started: begin, Ended: at(300), Jobs: []engine.JobState{
		finished("a", 0, 100, 0, 1), finished("b", 0, 40, 0, 1), finished("c", 40, 90, 0, 1), finished("d", 102, 290, 0, 1), finished("e", 90, 280, 0, 1),
		finished("reused", -100, -10, 0, 1),
	}}
	path := func() (out string) {
		for _, s := range report.New(report.Input{Plan: record.Plan{Rows: rows}, State: state, Active: state.Ended.IsZero()}).Path {
			out += fmt.Sprintf("%s %v+%v ", s.ID, s.Waited, s.Seconds)
		}
		return out
	}
	if got := path(); got != "a 0+100 d 2+188 " {
		t.Errorf("%s", got)
	}
	// What is running ends after everything else, and its time is not known.
	state.Ended = time.Time{}
	state.Jobs[4].Status, state.Jobs[4].Ended, state.Jobs[4].Finished = engine.StatusRunning, time.Time{}, nil
	if got := path(); got != "b 0+40 c 0+50 e 0+0 " {
		t.Errorf("%s", got)
	}
	// Rows of no time at one moment are no ring.
	state.Ended = at(10)
	state.Jobs = []engine.JobState{finished("a", 5, 5, 0, 1), finished("b", 5, 5, 0, 1), finished("c", 5, 5, 0, 1)}
	if got := path(); got != "a 5+0 " {
		t.Errorf("%s", got)
	}
}

// TestSaved: what the cache saved is counted for rows that this build made.
func TestSaved(t *testing.T) {
	in := report.Input{
		Plan:  record.Plan{Rows: []matrix.Row{{ID: "a", Package: "p"}, {ID: "b", Package: "p"}, {ID: "old", Package: "p"}, {ID: "other", Package: "p"}}},
		State: &engine.State{Started: begin, Ended: at(300), Jobs: []engine.JobState{finished("a", 0, 100, 0, 4), finished("b", 0, 40, 3, 4), finished("old", -100, -40, 1, 4), finished("other", -100, -40, 1, 4)}},
	}
	in.State.Jobs[3].Current = false
	r := report.New(in)
	// Five calls took 50 seconds; three came from the cache.
	want := report.Saved{Rows: 1, RowSeconds: 60, Calls: 8, Hits: 3, CompileSeconds: 30}
	if r.Saved != want || r.Seconds != 140 || r.Summary() != "Finished: 3 of 3 rows ended." {
		t.Errorf("%+v %v %s", r.Saved, r.Seconds, r.Summary())
	}
}

// BenchmarkPage is what a server does for a page, once a second at most.
func BenchmarkPage(b *testing.B) {
	in := building(b)
	for b.Loop() {
		if err := report.New(in).WriteHTML(io.Discard, at(2400)); err != nil {
			b.Fatal(err)
		}
	}
}
