package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
)

// publishingFlags are the flags of kiln publish.
type publishingFlags struct {
	plan                                  planFlags
	to, release, dist, state, tag, title  string
	reason, verify, key, site, indexURL   string
	jobs                                  int
	dryRun, overwrite, untested, stealing bool
	prune, indexOnly, noIndex, noSide     bool
	asJSON                                bool
}

func (f *publishingFlags) register(cmd *cobra.Command) {
	f.plan.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "the `target`: a name of packages.yml, or dir:PATH, github:OWNER/REPOSITORY, s3:BUCKET/FOLDER, kiln:URL, pypi, testpypi, the address of uploads")
	flags.StringVar(&f.release, "release", "0", "1 publishes; 0 only shows what would be done")
	flags.BoolVar(&f.dryRun, "dry-run", false, "the same as --release 0")
	flags.StringVar(&f.dist, "dist", "", "the `folder` with finished files (default: dist beside packages.yml)")
	flags.StringVar(&f.state, "state", "", "the `folder` with the journal of builds (default: .kiln beside packages.yml)")
	flags.StringVar(&f.tag, "tag", "", "`template` of the release's tag, such as v{version} or v{date}.{counter}")
	flags.StringVar(&f.title, "title", "", "`template` of the release's title")
	flags.IntVar(&f.jobs, "jobs", 4, "files uploaded at once")
	flags.StringVar(&f.verify, "verify", "auto", "how uploads are checked: auto trusts hashes that the target computes, full reads every byte back")
	flags.BoolVar(&f.overwrite, "overwrite", false, "replace published files that have other bytes; the release remembers it for ever")
	flags.StringVar(&f.reason, "reason", "", "why files are replaced, for the release's log of changes")
	flags.BoolVar(&f.untested, "allow-untested", false, "publish also what could not be tested, as its test needs a GPU")
	flags.BoolVar(&f.stealing, "steal-lock", false, "take the lock of a publisher that is known to be gone")
	flags.StringVar(&f.key, "sign-key", "", "a `file` with an Ed25519 key to sign provenance with; - reads it from the standard input, env:NAME from a variable")
	flags.BoolVar(&f.noSide, "no-provenance", false, "publish distributions alone, without metadata, provenance and bill of materials")
	flags.StringVar(&f.site, "index", "", "the `folder` of the index to bring up to date (default: publish.index.dir of packages.yml)")
	flags.BoolVar(&f.noIndex, "no-index", false, "leave the index alone")
	flags.BoolVar(&f.indexOnly, "index-only", false, "upload nothing: make the index from what the target has")
	flags.StringVar(&f.indexURL, "index-url", "", "the `address` at which users find the index, for the install lines of notes")
	flags.BoolVar(&f.prune, "prune", false, "remove files that the rule publish.keep does not keep, instead of publishing")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	complete(cmd, "release", "0", "1")
	complete(cmd, "verify", "auto", "full")
	for _, name := range []string{"dist", "state", "index"} {
		_ = cmd.MarkFlagDirname(name)
	}
	cmd.MarkFlagsMutuallyExclusive("prune", "index-only")
	cmd.MarkFlagsMutuallyExclusive("no-index", "index-only")
}

func (a *app) publishCommand() *cobra.Command {
	var flags publishingFlags
	cmd := &cobra.Command{
		Use:   "publish",
		Short: "Upload what passed build, test and audit, then update the index",
		Long: `Compares the finished files in dist/ with a target and, with --release 1, uploads what is missing,
reads it back, finishes the release and brings the index up to date. Without --release 1 nothing is
changed: the comparison is printed.

Only files of rows that are built, tested and audited as packages.yml says now are published. A file that is there
with the same bytes is left alone; with other bytes it is refused, unless --overwrite is given. Run twice, it
does nothing the second time; killed, the next run continues.

Credentials come from the environment: GITHUB_TOKEN, KILN_TOKEN, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.`,
		Example: `  kiln publish
  kiln publish --release 1
  kiln publish --to dir:public --release 1
  kiln publish --prune`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.publish(cmd.Context(), &flags) },
	}
	flags.register(cmd)
	return cmd
}

// publication is a run of kiln publish.
type publication struct {
	*app
	flags    *publishingFlags
	settings matrix.PublishSettings
	planned  *planned
	target   publish.Target
	dir      string // of packages.yml
	site     string // of the index, or ""
	upload   bool
}

func (a *app) publish(ctx context.Context, f *publishingFlags) error {
	p := &publication{app: a, flags: f, dir: filepath.Dir(f.plan.file)}
	switch f.release {
	case "0", "1":
		p.upload = f.release == "1" && !f.dryRun
	default:
		return fmt.Errorf("--release %q: use 0 or 1", f.release)
	}
	if f.verify != "auto" && f.verify != "full" {
		return fmt.Errorf("--verify %q: use auto or full", f.verify)
	}
	var err error
	if p.planned, err = a.loadPlan(&f.plan); err != nil {
		return err
	}
	p.settings = p.planned.config.Publish()
	projects := map[string]bool{}
	for i := range p.planned.plan.Rows {
		projects[p.planned.plan.Rows[i].Package] = true
	}
	p.target, err = publish.Open(cmp.Or(f.to, p.settings.To), publish.OpenOptions{
		Targets: p.settings.Targets, Dir: p.dir, Projects: slices.Sorted(maps.Keys(projects)), Credentials: a.secrets, Getenv: a.secrets.Getenv, Retry: publish.Retry{Log: a.log},
	})
	if err != nil {
		return err
	}
	if p.site = f.site; p.site == "" && p.settings.Index.Dir != "" {
		p.site = filepath.Join(p.dir, filepath.FromSlash(p.settings.Index.Dir))
	}
	if f.noIndex || p.target.Limits().Flat {
		p.site = ""
	}
	switch {
	case f.prune:
		return p.runPrune(ctx)
	case f.indexOnly:
		if p.site == "" {
			return errors.New("there is no index: give --index, or publish.index.dir in packages.yml")
		}
		return p.runIndex(ctx)
	}
	return p.run(ctx)
}

// owner says who publishes: a CI run by its address, a person by user and host.
func owner() string {
	if run := os.Getenv("GITHUB_RUN_ID"); run != "" {
		return os.Getenv("GITHUB_SERVER_URL") + "/" + os.Getenv("GITHUB_REPOSITORY") + "/actions/runs/" + run
	}
	name := "unknown user"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s at %s, process %d", name, host, os.Getpid())
}

func (p *publication) inventory(ctx context.Context) (*publish.Inventory, error) {
	dist := cmp.Or(p.flags.dist, filepath.Join(p.dir, "dist"))
	opts := publish.InventoryOptions{
		Untested: p.flags.untested || p.settings.Untested, Skipped: p.planned.plan.Skipped, Merged: p.planned.plan.Merged(), NoSide: p.flags.noSide, Failures: map[string]string{},
		Statement: publish.StatementOptions{Version: kilnVersion(), Signed: time.Now()},
	}
	if os.Getenv("GITHUB_RUN_ID") != "" {
		opts.Statement.Builder = owner()
	}
	if p.flags.key != "" {
		var err error
		if opts.Statement.Key, err = p.readSigningKey(p.flags.key); err != nil {
			return nil, fmt.Errorf("--sign-key: %w", err)
		}
	}
	// Why rows failed here is known to the journal, if they were built here.
	if state, err := engine.ReadState(cmp.Or(p.flags.state, filepath.Join(p.dir, ".kiln"))); err == nil {
		for i := range state.Jobs {
			if j := &state.Jobs[i]; j.Status == engine.StatusFailed {
				opts.Failures[j.ID] = secret.Clean(j.Reason) // an earlier kiln may have written it
			}
		}
	}
	return publish.ReadInventory(ctx, dist, p.planned.plan.Rows, opts)
}

func (p *publication) planOptions() publish.PlanOptions {
	return publish.PlanOptions{Tag: cmp.Or(p.flags.tag, p.settings.Tag), Title: cmp.Or(p.flags.title, p.settings.Title), Overwrite: p.flags.overwrite, Now: time.Now()}
}

func (p *publication) run(ctx context.Context) error {
	inv, err := p.inventory(ctx)
	if err != nil {
		return err
	}
	if len(inv.Units) == 0 {
		p.printRows(inv.Rows)
		return rowsFailedError{fmt.Errorf("nothing to publish: no row of the plan is built, tested and audited\n  run `kiln build` first")}
	}
	if !p.upload {
		plan, err := publish.Prepare(ctx, p.target, inv, p.planOptions())
		if err != nil {
			return err
		}
		if p.flags.asJSON {
			err = p.printJSON(map[string]any{"format": "kiln-publish/1", "dry_run": true, "plan": plan})
		} else {
			err = p.printPublishPlan(plan)
		}
		if err == nil {
			err = refusals(plan.Count(publish.DoRefuse), len(plan.Missing()))
		}
		return err
	}
	site, err := p.openSite()
	if err != nil {
		return err
	}
	opts := publish.Options{
		PlanOptions: p.planOptions(), Owner: owner(), Jobs: p.flags.jobs, VerifyFull: p.flags.verify == "full", Reason: p.flags.reason, StealLock: p.flags.stealing, Log: p.log,
		Notes: publish.NotesOptions{IndexURL: p.flags.indexURL, Base: p.target.Base},
	}
	if site != nil {
		opts.Unlist = func(names []string) error { return site.Unlist(ctx, names) }
	}
	progress := p.progress(&opts)
	result, err := publish.Run(ctx, p.target, inv, opts)
	progress()
	if err != nil {
		return err
	}
	listed, err := p.updateIndex(ctx, site)
	if err != nil {
		return fmt.Errorf("the files are published, but not in the index: %w", err)
	}
	if p.flags.asJSON {
		err = p.printJSON(map[string]any{"format": "kiln-publish/1", "dry_run": false, "result": result, "index": listed})
	} else {
		err = p.printPublished(result, listed)
	}
	if err != nil {
		return err
	}
	return refusals(len(result.Failed), len(result.Plan.Missing()))
}

// refusals is the error for a publication of which not everything came about.
func refusals(files, rows int) error {
	var parts []string
	if files > 0 {
		parts = append(parts, units.Count(files, "file")+" not published")
	}
	if rows > 0 {
		parts = append(parts, units.Count(rows, "row")+" missing")
	}
	if len(parts) == 0 {
		return nil
	}
	return rowsFailedError{errors.New(strings.Join(parts, ", "))}
}

// progress shows uploads as they go. The returned function ends that.
func (p *publication) progress(opts *publish.Options) (stop func()) {
	bar := ui.NewProgress(p.stderr, p.err, "uploading")
	var mu sync.Mutex
	var total, sum int64
	done := map[string]int64{}
	opts.OnEvent = func(e publish.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e.Kind {
		case "planned":
			total = e.Plan.Bytes()
		case "uploading", "uploaded":
			sum += e.Done - done[e.File]
			done[e.File] = e.Done
			if total > 0 {
				bar.Set(min(sum, total), total)
			}
		}
	}
	return bar.Close
}

// openSite returns nil if no index is wanted.
func (p *publication) openSite() (*publish.Site, error) {
	if p.site == "" {
		return nil, nil //nolint:nilnil // no index is wanted
	}
	store, err := index.Open(p.site, index.StoreOptions{Log: p.log})
	if err != nil {
		return nil, err
	}
	return &publish.Site{Store: store, Pages: func(ctx context.Context) error { return p.writeWeb(ctx, store, false) }}, nil
}

// updateIndex lists what the target has, and pushes the pages if that is configured.
func (p *publication) updateIndex(ctx context.Context, site *publish.Site) (*publish.Listing, error) {
	x := p.settings.Index
	deploy := publish.DeployOptions{Repository: cmp.Or(p.dir, "."), Remote: x.Remote, Branch: x.Branch, Env: p.secrets.Environ(nil), Credentials: p.secrets}
	if !p.upload {
		deploy.Branch = ""
	}
	listed, err := site.Update(ctx, p.target, x.Default, deploy)
	if listed != nil {
		listed.Dir = p.site // as the user wrote it
	}
	return listed, err
}

// runIndex is --index-only.
func (p *publication) runIndex(ctx context.Context) error {
	site, err := p.openSite()
	if err != nil {
		return err
	}
	listed, err := p.updateIndex(ctx, site)
	if err != nil {
		return err
	}
	if p.flags.asJSON {
		err = p.printJSON(map[string]any{"format": "kiln-publish/1", "index": listed})
	} else {
		p.printListing(listed)
	}
	if err == nil && len(listed.Problems) > 0 {
		err = rowsFailedError{fmt.Errorf("%s not in the index", units.Count(len(listed.Problems), "file"))}
	}
	return err
}

// runPrune is --prune: a dry run unless --release 1.
func (p *publication) runPrune(ctx context.Context) error {
	keep := publish.Keep{Age: time.Duration(p.settings.Keep.Days) * 24 * time.Hour, Releases: p.settings.Keep.Releases}
	if keep == (publish.Keep{}) {
		return errors.New("there is no rule: give publish: {keep: {days: …, releases: …}} in packages.yml")
	}
	releases, err := p.target.List(ctx, func(string) bool { return true })
	if err != nil {
		return err
	}
	removals := publish.PlanPrune(releases, keep, time.Now())
	if p.upload {
		site, err := p.openSite()
		if err != nil {
			return err
		}
		if err := publish.Prune(ctx, p.target, removals, owner(), func(names []string) error { return site.Unlist(ctx, names) }); err != nil {
			return err
		}
	}
	if p.flags.asJSON {
		if removals == nil {
			removals = []publish.Removal{}
		}
		return p.printJSON(map[string]any{"format": "kiln-publish/1", "dry_run": !p.upload, "removals": removals})
	}
	table := ui.NewTable("TAG", "FILE", ">SIZE", "WHY")
	var size int64
	for _, r := range removals {
		table.Add(r.Tag, r.File.Name, units.Bytes(r.File.Size), r.Why)
		size += r.File.Size
	}
	if len(removals) > 0 {
		if err := table.Write(p.stdout, p.out); err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	verb := "removed"
	if !p.upload {
		verb = "would be removed; --release 1 removes them"
	}
	fmt.Fprintf(p.stdout, "%s, %s, %s\n", units.Count(len(removals), "file"), units.Bytes(size), verb)
	return nil
}

// printPublishPlan prints the comparison: what is there already only as a number.
func (p *publication) printPublishPlan(plan *publish.Plan) error {
	table := ui.NewTable("DO", "TAG", "FILE", ">SIZE", "WHY")
	shown := 0
	for _, a := range plan.Actions {
		if a.Do == publish.DoPresent {
			continue
		}
		shown++
		table.Add(a.Do, a.Tag, a.File.Name, units.Bytes(a.File.Size), a.Why)
	}
	if shown > 0 {
		if err := table.Write(p.stdout, p.out); err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	p.printRows(plan.Missing())
	p.printStrangers(plan)
	fmt.Fprintf(p.stdout, "%s: %s to upload (%s), %s there already", plan.Target, units.Count(plan.Count(publish.DoUpload, publish.DoReplace), "file"), units.Bytes(plan.Bytes()),
		units.Number(plan.Count(publish.DoPresent, publish.DoCheck)))
	if n := plan.Count(publish.DoReplace); n > 0 {
		fmt.Fprintf(p.stdout, ", %d of them replacing others", n)
	}
	if n := plan.Count(publish.DoRefuse); n > 0 {
		fmt.Fprintf(p.stdout, ", %d refused", n)
	}
	fmt.Fprintln(p.stdout, "\nThis was a dry run. --release 1 publishes.")
	return nil
}

// printRows lists rows of which nothing is published.
func (p *publication) printRows(rows []publish.RowState) {
	if len(rows) == 0 {
		return
	}
	table := ui.NewTable("ROW", "STATE", "WHY")
	for _, r := range rows {
		if r.State != publish.RowSkipped {
			table.Add(r.ID, r.State, r.Reason)
		}
	}
	_ = table.Write(p.stdout, p.out) // as every table before the summary
	fmt.Fprintln(p.stdout)
}

func (p *publication) printStrangers(plan *publish.Plan) {
	if len(plan.Strangers) > 0 {
		fmt.Fprintf(p.stderr, "kiln: note: %s in dist belong to no row of the plan and are not published: %s\n", units.Count(len(plan.Strangers), "file"), strings.Join(plan.Strangers, ", "))
	}
}

func (p *publication) printPublished(r *publish.Result, listed *publish.Listing) error {
	table := ui.NewTable("FILE", "TAG", ">SIZE", "RESULT")
	for _, a := range r.Uploaded {
		table.Add(a.File.Name, a.Tag, units.Bytes(a.File.Size), "uploaded, verified")
	}
	for _, f := range r.Failed {
		table.Add(f.File.Name, f.Tag, units.Bytes(f.File.Size), "not published: "+f.Error)
	}
	if len(r.Uploaded)+len(r.Failed) > 0 {
		if err := table.Write(p.stdout, p.out); err != nil {
			return err
		}
		fmt.Fprintln(p.stdout)
	}
	p.printRows(r.Plan.Missing())
	p.printStrangers(r.Plan)
	p.printListing(listed)
	if len(r.Uploaded) == 0 && len(r.Failed) == 0 {
		fmt.Fprintf(p.stdout, "%s: nothing to do, all %s are there\n", r.Plan.Target, units.Count(len(r.Present), "file"))
		return nil
	}
	fmt.Fprintf(p.stdout, "%s: %s uploaded and verified (%s), %s there already\n", r.Plan.Target, units.Count(len(r.Uploaded), "file"), units.Bytes(r.Plan.Bytes()), units.Number(len(r.Present)))
	return nil
}

func (p *publication) printListing(l *publish.Listing) {
	if l == nil {
		return
	}
	for _, problem := range l.Problems {
		fmt.Fprintf(p.stderr, "kiln: not in the index: %s\n", problem)
	}
	fmt.Fprintf(p.stdout, "index %s: %s, %s in %s", l.Dir, units.Count(len(l.Changes), "change"), units.Bytes(l.Bytes), units.Count(l.Files, "page"))
	if l.Commit != "" {
		fmt.Fprintf(p.stdout, ", pushed as %.12s", l.Commit)
	}
	fmt.Fprintln(p.stdout)
	if l.Bytes > publish.GitHubPagesBytes {
		fmt.Fprintf(p.stderr, "kiln: warning: GitHub Pages takes sites of up to %s\n", units.Bytes(publish.GitHubPagesBytes))
	}
}
