package publishtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/publish"
)

// Fixture is one empty store for the suite.
type Fixture struct {
	// Open returns a target for the store, each time as a new process would. The transport is nil
	// for the usual one.
	Open func(t testing.TB, transport http.RoundTripper) publish.Target
	// Published returns what users can get: sums by tag and name. It is an error if there is
	// something twice.
	Published func() (map[string]string, error)
	// Faults go between target and store; nil if there is no network between them.
	Faults *Faults
}

// Document is the configuration of the suite: three rows and four files.
const Document = `
packages:
  demo:
    versions: ["1.0"]
    matrix:
      - {os: debian-12, python: ["3.11", "3.12"]}
    include:
      - {os: debian-12, kind: sdist, python: "3.11"}
`

// QuickRetry does not wait long.
var QuickRetry = publish.Retry{Wait: time.Millisecond, Limited: time.Millisecond}

// onlyWheel is a smaller configuration: one row.
const onlyWheel = "packages: {demo: {versions: [\"1.%d\"], matrix: [{os: debian-12, python: \"3.11\"}]}}"

// Test runs the suite that every target must pass, or the named parts of it. newFixture makes an
// empty store.
func Test(t *testing.T, newFixture func(t *testing.T) *Fixture, only ...string) {
	tests := map[string]func(*testing.T, *Fixture){
		"Twice":     testTwice,
		"Contract":  testContract,
		"Conflict":  testConflict,
		"Partial":   testPartial,
		"TwoAtOnce": testTwoAtOnce,
		"Locked":    testLocked,
		"Crash":     testCrash,
		"Canceled":  testCanceled,
		"Places":    testPlaces,
		"Answers":   testAnswers,
		"Random":    testRandom,
	}
	for name, test := range tests {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, newFixture(t)) })
	}
}

var testTime = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func options() publish.Options {
	return publish.Options{PlanOptions: publish.PlanOptions{Now: testTime}, Owner: "tester at host"}
}

// Check compares what users can get with what the inventory promises. all says that everything must
// be there.
func Check(t testing.TB, f *Fixture, target publish.Target, inv *publish.Inventory, all bool) {
	t.Helper()
	got, err := f.Published()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for i := range inv.Units {
		u := &inv.Units[i]
		want[u.File.Name] = u.File.SHA256
		for _, s := range u.Side {
			if takes(t, target, s.Name) {
				want[s.Name] = s.SHA256
			}
		}
	}
	seen := map[string]bool{}
	for key, sum := range got {
		name := key[strings.LastIndexByte(key, '/')+1:]
		if seen[name] {
			t.Errorf("%s is published twice", name)
		}
		seen[name] = true
		if name == "kiln-release.json" {
			continue
		}
		if want[name] != sum {
			t.Errorf("%s is published as %s, want %q", key, sum, want[name])
		}
	}
	for name := range want {
		if all && !seen[name] {
			t.Errorf("%s is not published", name)
		}
	}
}

// takes reports whether a target takes a file that goes with a wheel.
func takes(t testing.TB, target publish.Target, name string) bool {
	t.Helper()
	if _, err := target.List(t.Context(), func(string) bool { return true }); err != nil { // limits are known after it
		t.Fatal(err)
	}
	limits := target.Limits()
	return !limits.WheelsOnly && (!limits.PapersAfter || !strings.HasSuffix(name, ".metadata"))
}

// CheckListed reads every file that the target lists with a hash.
func CheckListed(t testing.TB, target publish.Target) {
	t.Helper()
	releases, err := target.List(t.Context(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range releases {
		for _, file := range r.Files {
			if file.SHA256 == "" {
				continue
			}
			if sum := read(t, target, r.Tag, file.Name); sum != file.SHA256 {
				t.Errorf("%s/%s is listed as %s and is %s", r.Tag, file.Name, file.SHA256, sum)
			}
		}
	}
}

func read(t testing.TB, target publish.Target, tag, name string) string {
	t.Helper()
	rc, err := target.Open(t.Context(), tag, name)
	if err != nil {
		t.Errorf("listed, but absent: %v", err)
		return ""
	}
	defer rc.Close()
	h := sha256.New()
	if _, err := io.Copy(h, rc); err != nil {
		t.Error(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func mustRun(t *testing.T, target publish.Target, inv *publish.Inventory, opts publish.Options) *publish.Result {
	t.Helper()
	result, err := publish.Run(t.Context(), target, inv, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, failed := range result.Failed {
		t.Errorf("%s: %s", failed.File.Name, failed.Error)
	}
	return result
}

// testTwice: the first run uploads everything, the second nothing.
func testTwice(t *testing.T, f *Fixture) {
	p := NewProject(t, Document, 1000)
	inv := p.Inventory(t)
	target := f.Open(t, nil)
	plan, err := publish.Prepare(t.Context(), target, inv, options().PlanOptions)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Published(); len(got) > 0 {
		t.Errorf("a dry run published %v", got)
	}
	files := 4
	for i := range inv.Units {
		for _, s := range inv.Units[i].Side {
			if takes(t, target, s.Name) {
				files++
			}
		}
	}
	if plan.Count(publish.DoUpload) != files {
		t.Errorf("the plan uploads %d files, want %d", plan.Count(publish.DoUpload), files)
	}
	result := mustRun(t, target, inv, options())
	if len(result.Uploaded) != files || len(result.Present) != 0 {
		t.Errorf("%d uploaded and %d present, want %d and 0", len(result.Uploaded), len(result.Present), files)
	}
	Check(t, f, target, inv, true)
	CheckListed(t, target)

	again := f.Open(t, nil)
	uploads := 0
	opts := options()
	opts.OnEvent = func(e publish.Event) {
		if e.Kind == "uploading" {
			uploads++
		}
	}
	result = mustRun(t, again, inv, opts)
	if uploads != 0 || len(result.Uploaded) != 0 || len(result.Present) != files {
		t.Errorf("second run: %d uploads, %d uploaded, %d present; want 0, 0, %d", uploads, len(result.Uploaded), len(result.Present), files)
	}
}

// testContract: the small promises of the interface.
func testContract(t *testing.T, f *Fixture) {
	target := f.Open(t, nil)
	tag := "v1.0"
	if target.Limits().Flat {
		tag = ""
	}
	ctx := t.Context()
	if list, err := target.List(ctx, func(string) bool { return true }); err != nil || len(list) != 0 {
		t.Fatalf("an empty store lists %v, %v", list, err)
	}
	p := NewProject(t, Document, 100)
	inv := p.Inventory(t)
	file := inv.Units[0].File
	for range 2 { // each of them can be called again
		if err := target.Begin(ctx, publish.Release{Tag: tag, Title: "One"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := target.Stat(ctx, tag, file.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of what is not there: %v", err)
	}
	for range 2 {
		got, err := target.Upload(ctx, tag, file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Name != file.Name || got.Size != file.Size || got.SHA256 != "" && got.SHA256 != file.SHA256 {
			t.Errorf("upload gives %+v, want that of %+v", got, file)
		}
	}
	other := file
	other.Path, other.Data = "", []byte("other bytes")
	sum := sha256.Sum256(other.Data)
	other.Size, other.SHA256 = int64(len(other.Data)), hex.EncodeToString(sum[:])
	if _, err := target.Upload(ctx, tag, other, nil); err == nil {
		t.Error("other bytes under a published name were taken")
	} else if !errors.Is(err, publish.ErrExists) && !target.Limits().NoOverwrite {
		t.Errorf("other bytes under a published name: %v, want ErrExists", err)
	}
	if sum := read(t, target, tag, file.Name); sum != file.SHA256 {
		t.Errorf("it reads back as %s, want %s", sum, file.SHA256)
	}
	change := publish.Change{Time: testTime, Name: file.Name, Action: "replaced", Old: "a", New: "b", By: "<me> & -->"}
	release := publish.Release{Tag: tag, Title: "One", Notes: "Some | notes\n", Created: testTime, Files: []publish.RemoteFile{{Name: file.Name, Size: file.Size, SHA256: file.SHA256}}, Changes: []publish.Change{change}}
	if err := target.Finish(ctx, release); err != nil {
		t.Fatal(err)
	}
	release.Changes = nil
	if err := target.Finish(ctx, release); err != nil {
		t.Fatal(err)
	}
	list, err := target.List(ctx, func(string) bool { return true })
	if err != nil || len(list) != 1 || len(list[0].Files) != 1 || list[0].Files[0].SHA256 != file.SHA256 && list[0].Files[0].SHA256 != "" || list[0].Created.IsZero() {
		t.Fatalf("list: %+v, %v", list, err)
	}
	if !target.Limits().Flat {
		if diff := cmp.Diff([]publish.Change{change}, list[0].Changes); diff != "" {
			t.Errorf("changes must not get lost (-want +got):\n%s", diff)
		}
		if list[0].Title != "One" || strings.TrimSpace(list[0].Notes) != "Some | notes" {
			t.Errorf("title %q and notes %q", list[0].Title, list[0].Notes)
		}
		if list, err := target.List(ctx, func(tag string) bool { return tag == "v2" }); err != nil || len(list) != 0 {
			t.Errorf("other tags: %v, %v", list, err)
		}
		for range 2 {
			if err := target.Remove(ctx, tag, file.Name); err != nil {
				t.Error(err)
			}
		}
		if _, err := target.Open(ctx, tag, file.Name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open after removal: %v", err)
		}
	}
}

// testConflict: another file under a published name is refused, and with an overwrite it is
// remembered.
func testConflict(t *testing.T, f *Fixture) {
	p := NewProject(t, Document, 100)
	target := f.Open(t, nil)
	mustRun(t, target, p.Inventory(t), options())
	before, err := f.Published()
	if err != nil {
		t.Fatal(err)
	}
	old := p.Inventory(t)
	p.Finish(t, &p.Plan.Rows[0], "rebuilt", 100)
	inv := p.Inventory(t)
	name := inv.Units[0].File.Name
	result, err := publish.Run(t.Context(), f.Open(t, nil), inv, options())
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Failed) != 1 || !errors.Is(result.Failed[0].Err, publish.ErrExists) || result.Failed[0].File.Name != name {
		t.Fatalf("failed: %+v, want %s refused", result.Failed, name)
	}
	after, err := f.Published()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("a refused file changed something (-before +after):\n%s", diff)
	}
	opts := options()
	opts.Overwrite, opts.Reason = true, "the first was broken"
	result, err = publish.Run(t.Context(), f.Open(t, nil), inv, opts)
	if err != nil {
		t.Fatal(err)
	}
	if target.Limits().NoOverwrite {
		if len(result.Failed) != 1 {
			t.Errorf("failed: %+v, want a refusal", result.Failed)
		}
		return
	}
	for _, failed := range result.Failed {
		t.Errorf("%s: %s", failed.File.Name, failed.Error)
	}
	Check(t, f, target, inv, true)
	releases, err := f.Open(t, nil).List(t.Context(), func(string) bool { return true })
	if err != nil || len(releases) != 1 {
		t.Fatal(releases, err)
	}
	found := false
	for _, c := range releases[0].Changes {
		if c.Name == name {
			found = c.Old == old.Units[0].File.SHA256 && c.New == inv.Units[0].File.SHA256 && c.By == opts.Owner && c.Reason == opts.Reason
		}
	}
	if !found || !strings.Contains(releases[0].Notes, "Changes after publication") {
		t.Errorf("the overwrite of %s is not remembered: %+v", name, releases[0].Changes)
	}
	// For ever: also after the next publication.
	if err := os.Remove(p.Record(&p.Plan.Rows[1])); err != nil {
		t.Fatal(err)
	}
	p.Finish(t, &p.Plan.Rows[1], "rebuilt too", 100)
	mustRun(t, f.Open(t, nil), p.Inventory(t), opts)
	again, err := f.Open(t, nil).List(t.Context(), func(string) bool { return true })
	if err != nil || len(again[0].Changes) <= len(releases[0].Changes) {
		t.Errorf("changes: %d, then %d; %v", len(releases[0].Changes), len(again[0].Changes), err)
	}
}

// testPartial: what passed is published, what is missing is said, and comes later.
func testPartial(t *testing.T, f *Fixture) {
	p := NewProject(t, Document, 100)
	if err := os.Remove(p.Record(&p.Plan.Rows[1])); err != nil {
		t.Fatal(err)
	}
	inv := p.Inventory(t)
	target := f.Open(t, nil)
	result := mustRun(t, target, inv, options())
	if missing := result.Plan.Missing(); len(missing) != 1 || missing[0].ID != p.Plan.Rows[1].ID {
		t.Errorf("missing: %+v", missing)
	}
	if !target.Limits().Flat {
		if notes := result.Releases[0].Notes; !strings.Contains(notes, "not complete: 1 row is missing") || !strings.Contains(notes, p.Plan.Rows[1].ID) {
			t.Errorf("the notes do not say what is missing:\n%s", notes)
		}
	}
	p.Finish(t, &p.Plan.Rows[1], "", 100)
	inv = p.Inventory(t)
	mustRun(t, f.Open(t, nil), inv, options())
	Check(t, f, target, inv, true)
}

// testTwoAtOnce: both succeed, or one says who has the lock; then nothing is there twice, and
// everything once.
func testTwoAtOnce(t *testing.T, f *Fixture) {
	p := NewProject(t, Document, 20_000)
	inv := p.Inventory(t)
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		target := f.Open(t, nil)
		wg.Go(func() {
			opts := options()
			opts.Owner = fmt.Sprintf("publisher %d", i)
			result, err := publish.Run(t.Context(), target, inv, opts)
			if err == nil && len(result.Failed) > 0 {
				err = result.Failed[0].Err
			}
			errs[i] = err
		})
	}
	wg.Wait()
	succeeded := 0
	for _, err := range errs {
		locked, ok := errors.AsType[*publish.LockedError](err)
		switch {
		case err == nil:
			succeeded++
		case !ok || !strings.HasPrefix(locked.Owner.Name, "publisher "):
			t.Errorf("%v, want success or the holder of the lock", err)
		}
	}
	if succeeded == 0 {
		t.Errorf("no publisher succeeded: %v", errs)
	}
	target := f.Open(t, nil)
	Check(t, f, target, inv, true)
	CheckListed(t, target)
}

// testLocked: a lock names its owner, can be stolen, and is free after its release.
func testLocked(t *testing.T, f *Fixture) {
	a, b := f.Open(t, nil), f.Open(t, nil)
	if a.Limits().Flat {
		return // the server does it
	}
	unlock, err := a.Lock(t.Context(), publish.Owner{Name: "the first", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Lock(t.Context(), publish.Owner{Name: "the second", ID: "2"})
	if locked, ok := errors.AsType[*publish.LockedError](err); !ok || locked.Owner.Name != "the first" || !strings.Contains(err.Error(), "the first") {
		t.Errorf("a second lock: %v, want one that names the first", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = b.Lock(t.Context(), publish.Owner{Name: "the second", ID: "2"})
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	if f.Faults != nil { // a lock of a process that is gone
		unlockStolen, err := a.Lock(t.Context(), publish.Owner{Name: "the third", ID: "3", Steal: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := unlock(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Lock(t.Context(), publish.Owner{Name: "the fourth", ID: "4"}); !errors.As(err, new(*publish.LockedError)) {
			t.Errorf("the old owner freed the lock of the new one: %v", err)
		}
		if err := unlockStolen(); err != nil {
			t.Fatal(err)
		}
	} else if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

var errCrashed = errors.New("the process is gone")

// crash lets n requests pass, and nothing after that.
type crash struct {
	mu   sync.Mutex
	n    int
	done func()
	next http.RoundTripper
}

func (c *crash) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.n--
	dead := c.n < 0
	c.mu.Unlock()
	if dead {
		c.done()
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errCrashed
	}
	return c.next.RoundTrip(r)
}

// testCrash ends a publication before every single one of its requests, and continues it.
func testCrash(t *testing.T, f *Fixture) {
	if f.Faults == nil {
		t.Skip("no network between target and store")
	}
	p := NewProject(t, Document, 100)
	inv := p.Inventory(t)
	for n := 0; ; n += 1 + n/16 {
		ctx, cancel := context.WithCancelCause(t.Context())
		transport := &crash{n: n, done: func() { cancel(errCrashed) }, next: http.DefaultTransport}
		opts := options()
		opts.StealLock, opts.Jobs = true, 1+n%2
		_, err := publish.Run(ctx, f.Open(t, transport), inv, opts)
		cancel(nil)
		Check(t, f, f.Open(t, nil), inv, false)
		if err == nil {
			break
		}
		if n > 400 {
			t.Fatal("it never ends")
		}
	}
	target := f.Open(t, nil)
	Check(t, f, target, inv, true)
	CheckListed(t, target)
}

// testCanceled: a context that ends stops the work, and the next run continues.
func testCanceled(t *testing.T, f *Fixture) {
	p := NewProject(t, Document, 50_000)
	inv := p.Inventory(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	opts := options()
	opts.Jobs = 1
	opts.OnEvent = func(e publish.Event) {
		if e.Kind == "verified" {
			cancel(cause)
		}
	}
	if _, err := publish.Run(ctx, f.Open(t, nil), inv, opts); !errors.Is(err, cause) && !errors.Is(err, context.Canceled) {
		t.Errorf("canceled run: %v", err)
	}
	target := f.Open(t, nil)
	Check(t, f, target, inv, false)
	mustRun(t, target, inv, options())
	Check(t, f, target, inv, true)
}

// testPlaces breaks an upload at every class of places.
func testPlaces(t *testing.T, f *Fixture) {
	if f.Faults == nil {
		t.Skip("no network between target and store")
	}
	target := f.Open(t, nil)
	size := NewProject(t, fmt.Sprintf(onlyWheel, 0), 5000).Inventory(t).Units[0].File.Size
	isUpload := func(r *http.Request) bool {
		return (r.Method == http.MethodPost || r.Method == http.MethodPut) && r.ContentLength >= size
	}
	var faults []Fault
	for _, at := range []int64{0, 1, 511, size / 2, size - 1, size} {
		faults = append(faults, Fault{Kind: "body", At: at}, Fault{Kind: "short", At: min(at, size-1)}, Fault{Kind: "flip", At: min(at, size-1)})
	}
	for _, at := range []int64{0, 1, 16, 100, 1 << 20} {
		faults = append(faults, Fault{Kind: "answer", At: at})
	}
	faults = append(faults, Fault{Kind: "refuse"})
	for i, fault := range faults {
		// A version of its own, so that there is something to upload.
		inv := NewProject(t, fmt.Sprintf(onlyWheel, i), 5000).Inventory(t)
		f.Faults.Set(Once(isUpload, fault))
		before := f.Faults.Count()
		result, err := publish.Run(t.Context(), f.Open(t, nil), inv, options())
		if err != nil {
			t.Errorf("%+v: %v", fault, err)
			continue
		}
		for _, failed := range result.Failed {
			t.Errorf("%+v: %s: %s", fault, failed.File.Name, failed.Error)
		}
		if f.Faults.Count() == before {
			t.Errorf("%+v did not happen", fault)
		}
	}
	f.Faults.Set(nil)
	CheckListed(t, target)
}

// testAnswers: servers that are busy are asked again, as they wish; what stays is an error that
// says so.
func testAnswers(t *testing.T, f *Fixture) {
	if f.Faults == nil {
		t.Skip("no network between target and store")
	}
	p := NewProject(t, Document, 100)
	inv := p.Inventory(t)
	n := 0
	statuses := []int{500, 502, 503, 504, 429}
	f.Faults.Set(func(*http.Request) Fault {
		if n++; n%3 == 0 && n/3 <= len(statuses) {
			return Fault{Kind: "status", Status: statuses[n/3-1], After: -1 + n%2}
		}
		return Fault{}
	})
	target := f.Open(t, nil)
	mustRun(t, target, inv, options())
	f.Faults.Set(nil)
	Check(t, f, target, inv, true)

	f.Faults.Set(func(*http.Request) Fault { return Fault{Kind: "status", Status: 503, After: -1} })
	_, err := publish.Run(t.Context(), f.Open(t, nil), inv, options())
	if err == nil || !strings.Contains(err.Error(), "attempts") {
		t.Errorf("a server that is never there: %v", err)
	}
	f.Faults.Set(func(*http.Request) Fault { return Fault{Kind: "status", Status: 503, After: 100_000} })
	if _, err := publish.Run(t.Context(), f.Open(t, nil), inv, options()); err == nil {
		t.Error("no error for a server that is never there")
	}
	f.Faults.Set(nil)
}

// testRandom publishes under random faults until it is done.
func testRandom(t *testing.T, f *Fixture) {
	if f.Faults == nil {
		t.Skip("no network between target and store")
	}
	p := NewProject(t, Document, 3000)
	inv := p.Inventory(t)
	f.Faults.Set(Random(rand.New(rand.NewPCG(1, 2)), 6))
	done := false
	for range 30 {
		opts := options()
		opts.StealLock = true
		result, err := publish.Run(t.Context(), f.Open(t, nil), inv, opts)
		if done = err == nil && len(result.Failed) == 0; done {
			break
		}
	}
	f.Faults.Set(nil)
	if !done {
		t.Error("it never got through")
	}
	target := f.Open(t, nil)
	Check(t, f, target, inv, true)
	CheckListed(t, target)
}
