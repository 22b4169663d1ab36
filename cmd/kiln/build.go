package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/report"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/matrix"
)

// buildFlags are the flags of commands that run rows.
type buildFlags struct {
	plan planFlags

	runner, memory, dist, state string
	jobs, cpus                  int
	rebuild, failFast, keepWork bool
	prune                       bool

	noShare     bool
	verifyShare int
	cacheRemote string
	cacheSize   string

	indexURL, torchIndex, image string
	engineArgs, containerArgs   []string
	containerNetwork            string

	slurmConfig string
	slurmArgs   []string
}

func (f *buildFlags) register(cmd *cobra.Command) {
	f.plan.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.runner, "runner", "host", "where rows are built: host, podman or docker")
	flags.IntVar(&f.jobs, "jobs", 0, "rows at once, at most (default: as many as memory and processors allow)")
	flags.IntVar(&f.cpus, "cpus", 0, "processors that rows may use together (default: all)")
	flags.StringVar(&f.memory, "memory", "", "memory that rows may use together, such as 16GiB (default: what is free, less a reserve)")
	flags.StringVar(&f.dist, "dist", "", "the `folder` for finished files (default: dist beside packages.yml)")
	flags.StringVar(&f.state, "state", "", "the `folder` for journal, logs and caches (default: .kiln beside packages.yml)")
	flags.BoolVar(&f.failFast, "fail-fast", false, "stop at the first row that fails")
	flags.BoolVar(&f.keepWork, "keep-work", false, "keep the work folders of rows that succeed, too")
	flags.BoolVar(&f.prune, "prune", hostedRunner(), "remove an image that kiln pulled or prepared when no further row needs it (default: on hosted CI runners)")
	flags.BoolVar(&f.noShare, "no-share", false, "compile everything from scratch, without the compile cache")
	flags.IntVar(&f.verifyShare, "verify-share", 0, "compile `N` objects of each row that came from the cache again, and compare")
	flags.StringVar(&f.cacheRemote, "cache-remote", "", "`address` of a compile cache shared with other machines, http, https or redis (default $KILN_CACHE_REMOTE, then cache.remote of packages.yml)")
	flags.StringVar(&f.cacheSize, "cache-size", "", "how large the compile cache may become (default 20GB)")
	flags.StringVar(&f.indexURL, "index-url", "", "the package `index` for everything but torch (default: pip's)")
	flags.StringVar(&f.torchIndex, "torch-index", "", "the `address` below which torch's indexes are (default "+build.DefaultTorchIndex+")")
	flags.StringVar(&f.image, "default-image", "", "`image` of CUDA rows that name none (default "+build.DefaultImage+"; ROCm rows: "+build.DefaultROCmImage+")")
	flags.StringArrayVar(&f.engineArgs, "engine-arg", nil, "an `argument` for every call of podman or docker, such as --runtime=runc")
	flags.StringArrayVar(&f.containerArgs, "container-arg", nil, "an `argument` for every container, such as --device=nvidia.com/gpu=all")
	flags.StringVar(&f.containerNetwork, "container-network", "", "the network of containers that may have one (default: the engine's)")
	runners := []string{"host", "podman", "docker"}
	if cmd.Name() == "build" {
		runners = append(runners, "slurm")
		flags.Lookup("runner").Usage = "where rows are built: host, podman, docker or slurm"
	}
	complete(cmd, "runner", runners...)
	for _, name := range []string{"dist", "state"} {
		_ = cmd.MarkFlagDirname(name)
	}
}

// hostedRunner reports whether this is a machine of a CI host, which nobody uses afterwards.
func hostedRunner() bool {
	return os.Getenv("GITHUB_ACTIONS") == "true" && os.Getenv("RUNNER_ENVIRONMENT") == "github-hosted"
}

// folder is that of packages.yml.
func (f *buildFlags) folder() string {
	if f.plan.file == "-" {
		return "."
	}
	return filepath.Dir(f.plan.file)
}

func (f *buildFlags) stateDir() string {
	if f.state != "" {
		return f.state
	}
	return filepath.Join(f.folder(), ".kiln")
}

// options fills the options of package build from flags and environment.
func (a *app) buildOptions(ctx context.Context, f *buildFlags) (build.Options, error) {
	opts := build.Options{
		Dir: f.folder(), StateDir: f.stateDir(), DistDir: f.dist, Jobs: f.jobs, CPU: f.cpus, Rebuild: f.rebuild, FailFast: f.failFast, KeepWork: f.keepWork, Prune: f.prune,
		Recipe: build.RecipeOptions{TorchIndex: a.secrets.Take(f.torchIndex), DefaultImage: f.image}, Path: os.Getenv("PATH"), HaveGPU: a.host().HasGPU(), Log: a.log,
		Host: a.host(), MSVC: f.plan.msvc, LongPaths: machine.LongPaths(),
	}
	var err error
	if f.plan.file != "-" {
		if opts.File, err = filepath.Abs(f.plan.file); err != nil {
			return opts, err
		}
	}
	if opts.Kiln, err = os.Executable(); err != nil {
		return opts, err
	}
	if f.memory != "" {
		if opts.MemoryBytes, err = units.ParseBytes(f.memory); err != nil {
			return opts, fmt.Errorf("--memory: %w", err)
		}
	}
	opts.NoShare, opts.VerifyShare = f.noShare, f.verifyShare
	if f.verifyShare < 0 {
		return opts, fmt.Errorf("--verify-share %d: a number of objects is not negative", f.verifyShare)
	}
	if f.cacheSize != "" {
		if opts.CacheBytes, err = units.ParseBytes(f.cacheSize); err != nil {
			return opts, fmt.Errorf("--cache-size: %w", err)
		}
	}
	// The flag, the environment, the file: the first that says something counts. Rows elsewhere get
	// it by the flag.
	f.cacheRemote = a.secrets.Take(cmp.Or(f.cacheRemote, os.Getenv("KILN_CACHE_REMOTE"), f.plan.cacheRemote))
	opts.Remote = share.RemoteCache{
		URL: f.cacheRemote, User: os.Getenv("KILN_CACHE_USER"),
		Password: a.secrets.Getenv("KILN_CACHE_PASSWORD"), Token: a.secrets.Getenv("KILN_CACHE_TOKEN"),
	}
	if address, _, _ := strings.Cut(f.cacheRemote, "|"); opts.Remote.User+opts.Remote.Password+opts.Remote.Token == "" {
		opts.Remote.User, opts.Remote.Password, _ = a.secrets.URL(strings.TrimSpace(address)).Credentials()
	}
	opts.SlotsDir = os.Getenv("KILN_SLOTS")
	opts.Pythons = build.FindPythons(os.Environ())
	if dir := os.Getenv("KILN_CACHE_DIR"); dir != "" {
		opts.StoreDir = filepath.Join(dir, "store")
	} else if dir, err := os.UserCacheDir(); err == nil { // else it is the project's
		opts.StoreDir = filepath.Join(dir, "kiln", "store")
	}
	if opts.Compat, err = f.plan.compatTable(); err != nil {
		return opts, err
	}
	opts.Network = build.FindNetwork(ctx, f.indexURL, os.Environ(), a.secrets)
	opts.Sandboxes, err = f.sandboxes(a, f.runner, opts.Network)
	return opts, err
}

func (f *buildFlags) sandboxes(a *app, name string, network build.Network) (sandbox.Maker, error) {
	switch name {
	case "host":
		return sandbox.Host(sandbox.HostOptions{}), nil
	case "podman", "docker":
		return sandbox.Container(sandbox.ContainerOptions{
			Runtime: name, RuntimeArgs: f.engineArgs, ExtraArgs: f.containerArgs, Network: f.containerNetwork,
			CABundle: network.CertFile, NetworkEnv: network.ProxyEnv(), LockDir: filepath.Join(f.stateDir(), "locks"), Log: a.log,
		}), nil
	case "slurm":
		return nil, errors.New("--runner slurm is for kiln build; use host, podman or docker here")
	}
	return nil, fmt.Errorf("--runner %q: use host, podman, docker or, with kiln build, slurm", name)
}

// rows plans and returns the rows that were asked for by name, or all.
func (a *app) selectRows(p *planned, names []string) ([]matrix.Row, error) {
	if p.plan.Findings.HasErrors() {
		a.printDiagnostics(p.plan.Findings, p.sources)
		return nil, &diag.ListError{Diagnostics: p.plan.Findings}
	}
	if len(names) == 0 {
		return p.plan.Rows, nil
	}
	var rows []matrix.Row
	for _, name := range names {
		found := false
		for _, row := range p.plan.Rows {
			if ok, err := path.Match(name, row.ID); err != nil {
				return nil, fmt.Errorf("row %q: %w", name, err)
			} else if !ok {
				continue
			}
			found = true
			if !slices.ContainsFunc(rows, func(r matrix.Row) bool { return r.ID == row.ID }) {
				rows = append(rows, row)
			}
		}
		if !found {
			ids := make([]string, len(p.plan.Rows))
			for i := range p.plan.Rows {
				ids[i] = p.plan.Rows[i].ID
			}
			hint := "`kiln plan` lists them"
			if near := diag.Suggest(name, ids); near != "" {
				hint = "did you mean " + near + "?"
			}
			return nil, fmt.Errorf("the plan has no row %s\n  %s", name, hint)
		}
	}
	return rows, nil
}

func (a *app) buildCommand() *cobra.Command {
	var flags buildFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "build [ROW…]",
		Short: "Build, test and audit the wheels that are missing",
		Long: `Builds every row of the plan that is not there yet, or the rows given by id, which may
contain *. Each row goes through its stages in an environment of its own; its files come
into dist/ when they have passed the test. One failed row never stops another.

It may be stopped or killed at any time: the next kiln build continues.`,
		Example: `  kiln build
  kiln build --select "cuda>=12.8" --runner podman
  kiln build 'exllamav2-*-cp313-*' --jobs 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flags.plan.load(a.stdin, a.secrets)
			if err != nil {
				return err
			}
			rows, err := a.selectRows(p, args)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				fmt.Fprintln(a.stderr, "kiln: nothing to do: the plan has no rows")
				return nil
			}
			buildOptions := a.buildOptions
			if flags.runner == "slurm" {
				buildOptions = func(ctx context.Context, f *buildFlags) (build.Options, error) { return a.useSlurm(ctx, cmd, f) }
			}
			opts, err := buildOptions(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			view := newBuildView(ui.NewLive(a.stderr, a.err), rows, p.plan)
			opts.OnEvent = view.event
			stop := view.start()
			result, err := build.Run(cmd.Context(), p.plan, rows, opts)
			stop()
			if result == nil {
				return err
			}
			if asJSON {
				if err := a.printJSON(jsonResult(result)); err != nil {
					return err
				}
			} else if err := a.printResult(result, "built"); err != nil {
				return err
			}
			if err != nil {
				return err
			}
			if err := unfinished(result, len(rows)); err != nil {
				return err
			}
			// A row that was asked for by name and not built is a failure; of a whole plan, rows for
			// other machines are expected, unless there are no others.
			if skipped := result.Count(engine.StatusSkipped); skipped > 0 && (len(args) > 0 || skipped == len(rows)) {
				return rowsFailedError{fmt.Errorf("%s of %d cannot be built here", units.Count(skipped, "row"), len(rows))}
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&flags.slurmConfig, "slurm-config", "", "the `file` that says how Slurm is used (default $KILN_SLURM_CONFIG, or "+slurm.ConfigFile+" if it exists)")
	cmd.Flags().StringArrayVar(&flags.slurmArgs, "slurm-arg", nil, "an `argument` for sbatch, such as --nice=100")
	cmd.Flags().BoolVar(&flags.rebuild, "rebuild", false, "build also what is there already")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return cmd
}

// unfinished is the error of a run in which rows failed or did not come to their end.
func unfinished(result *build.Result, rows int) error {
	failed, canceled := result.Count(engine.StatusFailed), result.Count(engine.StatusCanceled)
	text := fmt.Sprintf("%s of %d failed", units.Count(failed, "row"), rows)
	switch {
	case failed == 0 && canceled == 0:
		return nil
	case failed == 0:
		text = fmt.Sprintf("%s of %d canceled", units.Count(canceled, "row"), rows)
	case canceled > 0:
		text += fmt.Sprintf(", %d canceled", canceled)
	}
	return rowsFailedError{errors.New(text)}
}

// rowJSON is one row of the result for machines.
type rowJSON struct {
	ID     string        `json:"id"`
	Status engine.Status `json:"status"`
	Reason string        `json:"reason,omitempty"`
	Cause  engine.Cause  `json:"cause,omitempty"`
	Wall   float64       `json:"seconds"`
	Peak   int64         `json:"peak_memory_bytes,omitempty"`
	Tries  int           `json:"attempts"`
	Test   string        `json:"test,omitempty"`
	// Compiles says what was compiled and what was shared.
	Compiles *record.Compiles `json:"compiles,omitempty"`
	Files    []record.File    `json:"files"`
	Dir      string           `json:"attempt_dir,omitempty"`
	// Reuse says which row the wheel was built for, if it is another one, and how it was proven.
	Reuse *record.Reuse `json:"reuse,omitempty"`
	// Warnings are those of build and audit.
	Warnings []string `json:"warnings,omitempty"`
	// Diagnosis is the id of the cause of a failure; docs/diagnoses.md lists them.
	Diagnosis string `json:"diagnosis,omitempty"`
}

func jsonResult(result *build.Result) any {
	rows := make([]rowJSON, len(result.Rows))
	for i, r := range result.Rows {
		rows[i] = rowJSON{
			ID: r.Row.ID, Status: r.Status, Reason: r.Reason, Cause: r.Cause, Wall: r.Wall.Seconds(), Peak: r.JobReport.Result.PeakMemoryBytes,
			Tries: r.Attempts, Files: []record.File{}, Dir: r.Dir,
		}
		if r.Record != nil {
			rows[i].Test, rows[i].Files, rows[i].Compiles = r.Record.Test.Result, r.Record.Files, r.Record.Compiles
			rows[i].Warnings, rows[i].Reuse = r.Record.Warnings, r.Record.Reuse
		}
		if e, ok := errors.AsType[*build.RowError](r.Err); ok {
			rows[i].Diagnosis = e.Diagnosis.ID
		}
	}
	return map[string]any{"rows": rows, "started": result.Started, "ended": result.Ended}
}

// printResult prints the summary table, then the reasons of failures in full, and the warnings. did
// is what was done with the rows.
func (a *app) printResult(result *build.Result, did string) error {
	table := ui.NewTable("ROW", "RESULT", "TEST", ">TIME", ">PEAK", ">SIZE", ">SHARED")
	for _, r := range result.Rows {
		test, size, peak, share := "", "", "", ""
		if r.Record != nil {
			test = r.Record.Test.Result
			var n int64
			for _, f := range r.Record.Files {
				n += f.Size
			}
			size = units.Bytes(n)
			if c := r.Record.Compiles; c != nil && c.Calls > 0 {
				share = fmt.Sprintf("%d/%d", c.Hits, c.Calls)
			}
		}
		if n := r.JobReport.Result.PeakMemoryBytes; n > 0 {
			peak = units.Bytes(n)
		}
		status := string(r.Status)
		if r.Record != nil && r.Record.Reuse != nil && r.Status == engine.StatusDone {
			status = "proven"
		}
		table.Add(r.Row.ID, status, test, ui.Duration(r.Wall), peak, size, share)
	}
	if err := table.Write(a.stdout, a.out); err != nil {
		return err
	}
	for _, r := range result.Rows {
		if (r.Status == engine.StatusFailed || r.Status == engine.StatusSkipped) && r.Reason != "" {
			fmt.Fprintf(a.stdout, "\n%s: %s\n", r.Status, strings.TrimSpace(r.Reason))
		}
	}
	if lines := warningLines(result); len(lines) > 0 {
		fmt.Fprintln(a.stdout)
		for _, line := range lines {
			fmt.Fprintln(a.stdout, line)
		}
	}
	proven := 0
	for _, r := range result.Rows {
		if r.Record != nil && r.Record.Reuse != nil {
			if proven++; proven == 1 {
				fmt.Fprintln(a.stdout)
			}
			fmt.Fprintf(a.stdout, "%s reuses %s, proven by %s with torch %s: %s\n", r.Row.ID, r.Record.Reuse.Row, r.Record.Reuse.Proof, r.Record.Reuse.Torch, r.Record.Reuse.Reason)
		}
	}
	counts := []string{fmt.Sprintf("%d %s", result.Count(engine.StatusDone), did)}
	for _, c := range []struct {
		status engine.Status
		name   string
		always bool
	}{
		{engine.StatusReused, "already there", did == "built"},
		{engine.StatusFailed, "failed", true},
		{engine.StatusCanceled, "canceled", false},
		{engine.StatusSkipped, "skipped", true},
	} {
		if n := result.Count(c.status); n > 0 || c.always {
			counts = append(counts, fmt.Sprintf("%d %s", n, c.name))
		}
	}
	fmt.Fprintf(a.stdout, "\n%s in %s\n", strings.Join(counts, ", "), ui.Duration(result.Ended.Sub(result.Started)))
	if compiled := result.Count(engine.StatusDone, engine.StatusReused) - proven; proven > 0 && did == "built" {
		fmt.Fprintf(a.stdout, "%s: %d compiled, %d proven\n", units.Count(len(result.Rows), "row"), compiled, proven)
	}
	if line := compileLine(result); line != "" && did == "built" {
		fmt.Fprintln(a.stdout, line)
	}
	return nil
}

// warningLines are the warnings of build and audit, each once with the rows it is about.
func warningLines(result *build.Result) []string {
	var order []string
	rows := map[string][]string{}
	for _, r := range result.Rows {
		if r.Record == nil {
			continue
		}
		for _, w := range r.Record.Warnings {
			if rows[w] == nil {
				order = append(order, w)
			}
			if !slices.Contains(rows[w], r.Row.ID) {
				rows[w] = append(rows[w], r.Row.ID)
			}
		}
	}
	out := make([]string, len(order))
	for i, w := range order {
		who := rows[w][0]
		if n := len(rows[w]); n > 1 {
			who = fmt.Sprintf("%s and %d more", who, n-1)
		}
		out[i] = "warning: " + who + ": " + w
	}
	return out
}

func (a *app) statusCommand() *cobra.Command {
	var state, html string
	var watch, asJSON bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show how far the last or the current build is",
		Example: "  kiln status --watch\n  kiln status --html build.html",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON || html != "" {
				r, s, err := report.Read(state)
				if err != nil {
					return err
				}
				settle(s, r.Active)
				if html != "" {
					return a.writePage(html, r)
				}
				return a.printJSON(struct {
					*engine.State
					Report *report.Report `json:"report"`
					// Stale are the rows of which the files are not what packages.yml asks for now.
					Stale []string `json:"stale"`
				}{s, r, slices.AppendSeq([]string{}, slices.Values(slices.Sorted(maps.Keys(a.staleRows(state)))))})
			}
			live := ui.NewLive(a.stdout, a.out)
			for {
				s, err := engine.ReadState(state)
				if err != nil {
					return err
				}
				owner, active := engine.Active(state)
				settle(s, active)
				lines := statusLines(state, s, a.staleRows(state))
				if active {
					lines = append(lines, "", "at work: "+owner)
				}
				if !watch || !active || !live.IsLive() {
					for _, line := range lines {
						fmt.Fprintln(a.stdout, line)
					}
					return nil
				}
				live.Set(lines)
				select {
				case <-cmd.Context().Done():
					live.Close()
					return cmd.Context().Err()
				case <-time.After(time.Second):
				}
				live.Close()
			}
		},
	}
	cmd.Flags().StringVar(&state, "state", ".kiln", "the state `folder`")
	cmd.Flags().BoolVar(&watch, "watch", false, "go on until the build ends")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	cmd.Flags().StringVar(&html, "html", "", "write a page with the matrix, times and reasons to this `file`")
	cmd.MarkFlagsMutuallyExclusive("json", "html", "watch")
	return cmd
}

// writePage writes the page of a plan or a build.
func (a *app) writePage(path string, r *report.Report) error {
	err := writeReport(path, func(w io.Writer) error { return r.WriteHTML(w, time.Now()) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "written to %s: %s\n", path, r.Summary())
	return err
}

// settle says of rows that were running when kiln was killed that they are not any more.
func settle(s *engine.State, active bool) {
	for i := range s.Jobs {
		if j := &s.Jobs[i]; j.Status == engine.StatusRunning && !active {
			j.Status, j.Cause, j.Reason = engine.StatusCanceled, engine.CauseLost, report.Lost
		}
	}
}

// staleRows are the rows of the last build in a state folder of which the files are not what
// packages.yml asks for now. It is empty if that is not known.
func (a *app) staleRows(state string) map[string]bool {
	last, err := record.ReadPlan(state)
	if err != nil || last.File == "" {
		return nil
	}
	flags := planFlags{file: last.File}
	p, err := flags.load(a.stdin, a.secrets)
	if err != nil || p.config == nil {
		return nil
	}
	stale := map[string]bool{}
	for i := range p.plan.Rows {
		if row := &p.plan.Rows[i]; record.Stands(last.Dist, row) == record.StandingStale {
			stale[row.ID] = true
		}
	}
	return stale
}

func statusLines(dir string, s *engine.State, stale map[string]bool) []string {
	table := ui.NewTable("ROW", "STATE", "STAGE", ">TRY", ">TIME", ">PEAK", "REASON")
	n := 0
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if !j.Current {
			continue
		}
		n++
		spent, peak := "", ""
		switch {
		case j.Status == engine.StatusRunning:
			spent = ui.Duration(time.Since(j.Started))
		case !j.Ended.IsZero() && !j.Started.IsZero():
			spent = ui.Duration(j.Ended.Sub(j.Started))
		}
		if j.PeakMemoryBytes > 0 {
			peak = units.Bytes(j.PeakMemoryBytes)
		}
		stage := j.Stage
		if j.Status == engine.StatusRunning && j.Total > 0 {
			stage += fmt.Sprintf(" %d/%d", j.Done, j.Total)
		}
		reason := strings.TrimPrefix(firstLine(j.Reason), j.ID+": ")
		state := string(j.Status)
		if j.Status == engine.StatusDone && stale[j.ID] {
			state, reason = "stale", "packages.yml or dist/ has changed since; kiln build builds it again"
		}
		table.Add(j.ID, state, stage, fmt.Sprint(j.Attempt), spent, peak, reason)
	}
	if n == 0 {
		return []string{"nothing was built in " + dir}
	}
	var b strings.Builder
	_ = table.Write(&b, ui.Terminal{})
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// findJob returns the state of one row by its id or a pattern that fits one row only.
func findJob(state, name string) (*engine.JobState, error) {
	s, err := engine.ReadState(state)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(s.Jobs))
	for i := range s.Jobs {
		ids[i] = s.Jobs[i].ID
	}
	i, err := oneRow(ids, name, "no row "+name+" was ever built here", "`kiln status` lists them")
	if err != nil {
		return nil, err
	}
	return &s.Jobs[i], nil
}

// oneRow returns the index of the one id that a name or pattern fits. none and hint are what is
// said when there is none.
func oneRow(ids []string, name, none, hint string) (int, error) {
	var found []int
	for i, id := range ids {
		if ok, err := path.Match(name, id); err != nil {
			return 0, fmt.Errorf("row %q: %w", name, err)
		} else if ok {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return 0, fmt.Errorf("%s fits %s; name one", name, units.Count(len(found), "row"))
	}
	if near := diag.Suggest(name, ids); near != "" {
		hint = "did you mean " + near + "?"
	}
	return 0, fmt.Errorf("%s\n  %s", none, hint)
}

func (a *app) logsCommand() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "logs ROW",
		Short:   "Print the log of a row's last attempt",
		Example: "  kiln logs hello-cuda-0.1.0-cp311-linux_x86_64",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			job, err := findJob(state, args[0])
			if err != nil {
				return err
			}
			f, err := os.Open(filepath.Join(job.Dir(), engine.LogName))
			if err != nil {
				return fmt.Errorf("log of %s: %w", job.ID, err)
			}
			defer f.Close()
			// A terminal must not act on what a build printed; a file gets the bytes.
			if a.out.Width == 0 {
				_, err = f.WriteTo(ui.Raw(a.stdout))
				return err
			}
			out := ui.Log(a.stdout)
			if _, err := f.WriteTo(out); err != nil {
				return err
			}
			return out.Flush()
		},
	}
	cmd.Flags().StringVar(&state, "state", ".kiln", "the state `folder`")
	return cmd
}

// compileLine says how much came from the cache, and from where.
func compileLine(result *build.Result) string {
	var calls, hits, remote int
	for _, r := range result.Rows {
		if r.Record != nil && r.Record.Compiles != nil && r.Status == engine.StatusDone {
			calls, hits, remote = calls+r.Record.Compiles.Calls, hits+r.Record.Compiles.Hits, remote+r.Record.Compiles.RemoteHits
		}
	}
	if calls == 0 {
		return ""
	}
	line := fmt.Sprintf("compiler calls: %d, of which %d came from the cache", calls, hits)
	if remote > 0 {
		line += fmt.Sprintf(", %d of them from other machines", remote)
	}
	return line
}
