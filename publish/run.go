package publish

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/internal/sign"
)

// Options are how [Run] publishes.
type Options struct {
	PlanOptions
	// Owner is who publishes, for locks and the log of changes: user and host.
	Owner string
	// Jobs is how many files are uploaded at once. Default 4.
	Jobs int
	// VerifyFull reads every uploaded file back as a whole. By default that is done only where
	// the target does not compute SHA-256 itself.
	VerifyFull bool
	// StealLock takes the lock of a publisher that is known to be gone.
	StealLock bool
	// Reason is why files are replaced, for the log of changes.
	Reason string
	// Unlist takes files that are going to be replaced out of every index first: nothing that is
	// listed may differ. It may be nil.
	Unlist func(names []string) error
	// Notes adds to what is known of a release for its notes.
	Notes NotesOptions
	// OnEvent is told what happens, from several goroutines at once; it may be nil.
	OnEvent func(Event)
	// Log gets what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Event is a step of a publication.
type Event struct {
	// Kind is "planned", "uploading", "uploaded", "verified", "failed" or "finished".
	Kind string
	Plan *Plan // of "planned"
	Tag  string
	File string
	Done int64 // bytes of this file so far
	Size int64
	Err  error
}

// Result is what came of a publication.
type Result struct {
	Plan *Plan `json:"plan"`
	// Uploaded and Present are files that are published and verified now: by this run, and before.
	Uploaded []Action `json:"uploaded"`
	Present  []Action `json:"present"`
	// Failed are files that are not.
	Failed []Failure `json:"failed"`
	// Releases are those of the plan, as they are now.
	Releases []Release `json:"releases"`
}

// Failure is a file that was not published.
type Failure struct {
	Action
	Err   error  `json:"-"`
	Error string `json:"error"`
}

// Prepare lists the target and compares: the dry run.
func Prepare(ctx context.Context, target Target, inv *Inventory, opts PlanOptions) (*Plan, error) {
	match, err := Families(inv, target.Limits(), opts)
	if err != nil {
		return nil, err
	}
	existing, err := target.List(ctx, match)
	if err != nil {
		return nil, err
	}
	if opts.unsigned, err = unsignedStatements(ctx, target, inv, existing); err != nil {
		return nil, err
	}
	return NewPlan(target.String(), target.Limits(), inv, existing, opts)
}

// unsignedStatements returns the published statements to which the inventory adds a signature.
func unsignedStatements(ctx context.Context, target Target, inv *Inventory, existing []Release) (map[string]bool, error) {
	ours := map[string]LocalFile{}
	for i := range inv.Units {
		for _, f := range inv.Units[i].Side {
			if _, envelope, err := sign.Open(f.Data); err == nil && envelope != nil {
				ours[f.Name] = f
			}
		}
	}
	out := map[string]bool{}
	for _, r := range existing {
		for _, have := range r.Files {
			f, signed := ours[have.Name]
			if !signed || have.SHA256 == f.SHA256 {
				continue
			}
			text, err := readSmall(ctx, target, r.Tag, have.Name)
			if err != nil {
				return nil, fmt.Errorf("read %s of %s: %w", have.Name, target, err)
			}
			if _, envelope, err := sign.Open(text); err != nil || envelope != nil {
				continue
			}
			old, _, oldErr := ParseStatement(text, nil)
			now, _, nowErr := ParseStatement(f.Data, nil)
			out[have.Name] = oldErr == nil && nowErr == nil && reflect.DeepEqual(old.Subject, now.Subject)
		}
	}
	return out, nil
}

// Run publishes an inventory: it locks the target, lists and compares, uploads what is missing,
// reads it back, and says so in the release. A file that cannot be published does not hinder the
// others; the error is about the target as a whole. It can be called again at any time, and
// continues.
func Run(ctx context.Context, target Target, inv *Inventory, opts Options) (result *Result, err error) {
	if opts.Now.IsZero() {
		opts.Now = time.Now()
	}
	if opts.Jobs <= 0 {
		opts.Jobs = 4
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.OnEvent == nil {
		opts.OnEvent = func(Event) {}
	}
	// A run that has nothing to do takes no lock.
	if plan, err := Prepare(ctx, target, inv, opts.PlanOptions); err != nil {
		return nil, err
	} else if plan.settled() {
		opts.OnEvent(Event{Kind: "planned", Plan: plan})
		return plan.unchanged(), nil
	}
	unlock, err := target.Lock(ctx, Owner{Name: opts.Owner, ID: rand.Text(), Time: time.Now().UTC(), Steal: opts.StealLock})
	if err != nil {
		return nil, err
	}
	defer func() {
		if unlockErr := unlock(); unlockErr != nil && err == nil {
			err = fmt.Errorf("unlock %s: %w", target, unlockErr)
		}
	}()
	plan, err := Prepare(ctx, target, inv, opts.PlanOptions)
	if err != nil {
		return nil, err
	}
	opts.OnEvent(Event{Kind: "planned", Plan: plan})
	if plan.settled() {
		return plan.unchanged(), nil
	}
	r := &runner{target: target, opts: &opts, plan: plan, inv: inv, result: &Result{Plan: plan}, releases: map[string]*Release{}}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if err := r.upload(ctx); err != nil {
		return r.result, err
	}
	return r.result, r.finish(ctx)
}

// settled reports whether everything that can be published is there.
func (p *Plan) settled() bool {
	if p.Count(DoUpload, DoReplace, DoCheck) > 0 {
		return false
	}
	// Files without their release being finished: a run was killed before its last step.
	for _, r := range p.Releases {
		if i := slices.IndexFunc(p.existing, func(e Release) bool { return e.Tag == r.Tag }); i >= 0 && p.existing[i].Created.IsZero() {
			return false
		}
	}
	return true
}

// unchanged is the result of a run that had nothing to do.
func (p *Plan) unchanged() *Result {
	r := &Result{Plan: p, Releases: p.existing}
	for _, a := range p.Actions {
		if a.Do == DoPresent {
			r.Present = append(r.Present, a)
		} else {
			r.Failed = append(r.Failed, refusal(a))
		}
	}
	return r
}

func refusal(a Action) Failure {
	err := errors.New(a.Why)
	if a.Old != "" {
		err = fmt.Errorf("%w: %s", ErrExists, a.Why)
	}
	return Failure{Action: a, Err: err, Error: err.Error()}
}

type runner struct {
	target Target
	opts   *Options
	plan   *Plan
	inv    *Inventory

	mu       sync.Mutex
	result   *Result
	releases map[string]*Release // as they are becoming, by tag
}

// begin makes the releases and writes down what is going to be replaced, before it is.
func (r *runner) begin(ctx context.Context) error {
	for _, p := range r.plan.Releases {
		rel := &Release{Tag: p.Tag, Title: p.Title}
		if i := slices.IndexFunc(r.plan.existing, func(e Release) bool { return e.Tag == p.Tag }); i >= 0 {
			*rel = r.plan.existing[i]
			rel.Title, rel.Files, rel.Changes = p.Title, slices.Clone(rel.Files), slices.Clone(rel.Changes)
		}
		r.releases[p.Tag] = rel
	}
	replaced := map[string]bool{}
	var unlist []string
	for _, a := range r.plan.Actions {
		if a.Do != DoReplace || a.leftover {
			continue
		}
		rel := r.releases[a.Tag]
		old := a.Old
		if old == unknownSum {
			if sum, err := readBack(ctx, r.target, a.Tag, a.File.Name); err == nil {
				old = sum
			}
		}
		rel.Changes = append(rel.Changes, Change{
			Time: r.opts.Now.UTC().Truncate(time.Second), Name: a.File.Name, Action: "replaced", Old: old, New: a.File.SHA256, By: r.opts.Owner, Reason: r.opts.Reason,
		})
		replaced[a.Tag] = true
		if a.File.Name == a.Unit {
			unlist = append(unlist, a.File.Name)
		}
	}
	if len(unlist) > 0 && r.opts.Unlist != nil {
		if err := r.opts.Unlist(unlist); err != nil {
			return err
		}
	}
	for _, p := range r.plan.Releases {
		if !slices.ContainsFunc(r.plan.Actions, func(a Action) bool { return a.Tag == p.Tag && a.Do != DoRefuse }) {
			continue
		}
		if err := r.target.Begin(ctx, *r.releases[p.Tag]); err != nil {
			return err
		}
		if replaced[p.Tag] {
			if err := r.target.Finish(ctx, *r.releases[p.Tag]); err != nil {
				return err
			}
		}
	}
	return nil
}

// upload publishes unit after unit, several at once, the largest first. The files of a unit go one
// after the other, in the order of the plan.
func (r *runner) upload(ctx context.Context) error {
	var order []string
	units, size := map[string][]Action{}, map[string]int64{}
	for _, a := range r.plan.Actions {
		if units[a.Unit] == nil {
			order = append(order, a.Unit)
		}
		units[a.Unit] = append(units[a.Unit], a)
		size[a.Unit] += a.File.Size
	}
	slices.SortStableFunc(order, func(a, b string) int { return int(min(max(size[b]-size[a], -1), 1)) })
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.opts.Jobs)
	for _, name := range order {
		group.Go(func() error {
			var failed error
			for _, a := range units[name] {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if a.Do == DoRefuse {
					r.fail(refusal(a))
					continue
				}
				if failed != nil {
					r.fail(Failure{Action: a, Err: failed, Error: "not uploaded, as " + failed.Error()})
					continue
				}
				if err := r.file(ctx, a); err != nil {
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					failed = err
					r.fail(Failure{Action: a, Err: err, Error: err.Error()})
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (r *runner) fail(f Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Failed = append(r.result.Failed, f)
	r.opts.OnEvent(Event{Kind: "failed", Tag: f.Tag, File: f.File.Name, Err: f.Err})
}

// file publishes one file and proves it.
func (r *runner) file(ctx context.Context, a Action) error {
	event := Event{Tag: a.Tag, File: a.File.Name, Size: a.File.Size}
	tell := func(kind string, done int64) {
		event.Kind, event.Done = kind, done
		r.opts.OnEvent(event)
	}
	switch a.Do {
	case DoPresent:
		r.mu.Lock()
		r.result.Present = append(r.result.Present, a)
		r.mu.Unlock()
		return nil
	case DoCheck:
		remote, err := r.verify(ctx, a)
		if err != nil {
			if errors.Is(err, errDiffers) {
				return fmt.Errorf("%w: %s", ErrExists, a.File.Name)
			}
			return err
		}
		tell("verified", a.File.Size)
		r.published(a, remote, false)
		return nil
	case DoReplace:
		if err := r.target.Remove(ctx, a.Tag, a.File.Name); err != nil {
			return err
		}
		r.forget(a.Tag, a.File.Name)
	}
	// What was cut off or changed on the way is found by reading it back, and sent again.
	for try := 1; ; try++ {
		tell("uploading", 0)
		remote, err := r.target.Upload(ctx, a.Tag, a.File, func(n int64) { tell("uploading", n) })
		if err != nil {
			return err
		}
		tell("uploaded", a.File.Size)
		if remote.Name != a.File.Name {
			return fmt.Errorf("upload %s: the target calls it %s", a.File.Name, remote.Name)
		}
		remote, err = r.verify(ctx, a)
		if err == nil {
			tell("verified", a.File.Size)
			r.published(a, remote, true)
			return nil
		}
		if try == 3 || !errors.Is(err, errDiffers) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		r.opts.Log.Warn("uploading again", "file", a.File.Name, "error", err)
		if err := r.target.Remove(ctx, a.Tag, a.File.Name); err != nil {
			return err
		}
	}
}

// errDiffers is the error for a file that reads back as another one.
var errDiffers = errors.New("reads back differently")

// verify asks the target what it has.
func (r *runner) verify(ctx context.Context, a Action) (RemoteFile, error) {
	remote, err := r.target.Stat(ctx, a.Tag, a.File.Name)
	if err != nil {
		return remote, err
	}
	if remote.Size != a.File.Size {
		return remote, fmt.Errorf("%s %w: %d bytes, want %d", a.File.Name, errDiffers, remote.Size, a.File.Size)
	}
	if remote.SHA256 == "" || r.opts.VerifyFull {
		sum, err := readBack(ctx, r.target, a.Tag, a.File.Name)
		if err != nil {
			return remote, err
		}
		remote.SHA256 = sum
	}
	if remote.SHA256 != a.File.SHA256 {
		return remote, fmt.Errorf("%s %w: sha256 %s, want %s", a.File.Name, errDiffers, remote.SHA256, a.File.SHA256)
	}
	return remote, nil
}

// readBack hashes a file as users get it. A connection that breaks is tried again from the start.
func readBack(ctx context.Context, target Target, tag, name string) (string, error) {
	var sum string
	retry := Retry{Wait: 100 * time.Millisecond}
	err := retry.do(ctx, "read back "+name, func() error {
		f, err := target.Open(ctx, tag, name)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		sum = hex.EncodeToString(h.Sum(nil))
		return nil
	})
	return sum, err
}

func (r *runner) published(a Action, remote RemoteFile, uploaded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rel := r.releases[a.Tag]
	remote.SHA256 = a.File.SHA256
	if f := rel.File(a.File.Name); f != nil {
		*f = remote
	} else {
		rel.Files = append(rel.Files, remote)
	}
	if uploaded {
		r.result.Uploaded = append(r.result.Uploaded, a)
	} else {
		r.result.Present = append(r.result.Present, a)
	}
}

func (r *runner) forget(tag, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rel := r.releases[tag]
	rel.Files = slices.DeleteFunc(rel.Files, func(f RemoteFile) bool { return f.Name == name })
}

// finish says in each release what it has.
func (r *runner) finish(ctx context.Context) error {
	for _, list := range [][]Action{r.result.Uploaded, r.result.Present} {
		slices.SortFunc(list, func(a, b Action) int { return strings.Compare(a.Tag+"\x00"+a.File.Name, b.Tag+"\x00"+b.File.Name) })
	}
	slices.SortFunc(r.result.Failed, func(a, b Failure) int { return strings.Compare(a.File.Name, b.File.Name) })
	for _, p := range r.plan.Releases {
		rel := r.releases[p.Tag]
		if len(rel.Files) == 0 {
			continue
		}
		slices.SortFunc(rel.Files, func(a, b RemoteFile) int { return strings.Compare(a.Name, b.Name) })
		if rel.Created.IsZero() {
			rel.Created = r.opts.Now.UTC().Truncate(time.Second)
		}
		rel.Notes = Notes(rel, r.inv, p, r.opts.Notes)
		if err := r.target.Finish(ctx, *rel); err != nil {
			return err
		}
		r.result.Releases = append(r.result.Releases, *rel)
		r.opts.OnEvent(Event{Kind: "finished", Tag: p.Tag})
	}
	return nil
}
