package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/report"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
)

// planFlags are the flags of every command that starts from packages.yml.
type planFlags struct {
	file             string
	selection        string
	packages         []string
	python, cuda     string
	skipIncompatible bool
	compat           string
	history          string

	// cacheRemote is what load found in the file.
	cacheRemote string
	// msvc is the toolset that the file names, "" if it names none.
	msvc string
}

// defaultFile is what is read without -f, and defaultHistory is where builds leave
// their measurements.
const (
	defaultFile    = "packages.yml"
	defaultHistory = ".kiln/history.json"
)

func (f *planFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", defaultFile, "the `file` to read; - means standard input")
	flags.StringVar(&f.selection, "select", "", "only rows that match this `expression`, such as \"cuda>=12.8 and python=3.12\"")
	flags.StringSliceVar(&f.packages, "package", nil, "only these packages")
	flags.StringVar(&f.python, "python", "", "Python versions where the file gives none (default "+strings.Join(matrix.DefaultPython, ",")+")")
	flags.StringVar(&f.cuda, "cuda", "", "CUDA versions of packages without a matrix (default "+strings.Join(matrix.DefaultCUDA, ",")+")")
	flags.BoolVar(&f.skipIncompatible, "skip-incompatible", false, "skip rows that cannot work instead of stopping")
	flags.StringVar(&f.compat, "compat", "", "a `file` that adds to or replaces entries of the compatibility tables")
	flags.StringVar(&f.history, "history", "", "a `file` with measurements of earlier builds (default "+defaultHistory+" if it exists)")
	_ = cmd.MarkFlagFilename("file", "yml", "yaml")
	_ = cmd.MarkFlagFilename("compat", "json")
	_ = cmd.RegisterFlagCompletionFunc("package", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		text, err := fsx.ReadFile(f.file, maxInput)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		file, _ := matrix.Parse(f.file, text)
		if file == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return file.Packages(), cobra.ShellCompDirectiveNoFileComp
	})
	complete(cmd, "select", "cuda", "kind=", "os=", "package=", "python=", "rocm", "torch=", "toolkit=", "version=")
}

// planned is a plan with what is needed to talk about it.
type planned struct {
	plan *matrix.Plan
	// config is what the plan was made from, nil if it could not be read.
	config *matrix.File
	file   string
	table  *compat.Table
	// reuse are the rows that need no compiler.
	reuse []build.Expected
	// standing is what there is of the rows already, without those of which there is nothing.
	standing map[string]record.Standing
	// sources are the texts that diagnostics point into.
	sources map[string][]byte
}

// load reads packages.yml and plans it. Diagnostics are in planned.plan.Findings;
// the error is about something else, such as a file that cannot be read.
func (f *planFlags) load(stdin io.Reader, secrets *secret.Store) (*planned, error) {
	out := &planned{file: f.file, sources: map[string][]byte{}}
	var text []byte
	var err error
	if f.file == "-" {
		out.file = "<stdin>"
		text, err = io.ReadAll(io.LimitReader(stdin, maxInput))
	} else {
		text, err = fsx.ReadFile(f.file, maxInput)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.file == defaultFile:
		return nil, fmt.Errorf("no %s in this folder\n  `kiln init` writes one; or name another with -f", defaultFile)
	case err != nil:
		return nil, err
	}
	out.sources[out.file] = text
	out.sources[matrix.SelectionSource] = []byte(f.selection)
	opts := matrix.Options{
		Python: commaList(f.python), CUDA: commaList(f.cuda), Packages: f.packages, SkipIncompatible: f.skipIncompatible,
	}
	for name, values := range map[string][]string{"--python": opts.Python, "--cuda": opts.CUDA, "--package": opts.Packages} {
		out.sources[name] = []byte(strings.Join(values, ","))
	}
	if out.table, err = f.compatTable(); err != nil {
		return nil, err
	}
	opts.Compat = out.table
	if opts.History, err = f.readHistory(); err != nil {
		return nil, err
	}
	var list diag.List
	if f.selection != "" {
		var bad *diag.ListError
		if opts.Select, err = matrix.ParseSelection(f.selection); errors.As(err, &bad) {
			list = append(list, bad.Diagnostics...)
		}
	}
	file, found := matrix.Parse(out.file, text)
	list = append(list, found...)
	if file != nil {
		secrets.Add(file.Credentials()...)
		f.cacheRemote, f.msvc = file.Cache().Remote, file.Workflow().MSVC
		opts.Versions, found = file.ReadVersions()
		list = append(list, found...)
	}
	if list.HasErrors() {
		out.plan = &matrix.Plan{Findings: list}
		return out, nil
	}
	out.config = file
	out.plan = file.Plan(opts)
	out.plan.Findings = append(list, out.plan.Findings...)
	out.plan.Findings.Sort()
	return out, nil
}

func (f *planFlags) compatTable() (*compat.Table, error) {
	if f.compat == "" {
		return compat.Default(), nil
	}
	text, err := fsx.ReadFile(f.compat, maxInput)
	if err != nil {
		return nil, fmt.Errorf("--compat: %w", err)
	}
	override, err := compat.LoadOverride(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("--compat %s: %w", f.compat, err)
	}
	table, err := compat.Default().Merge(override)
	if err != nil {
		return nil, fmt.Errorf("--compat %s: %w", f.compat, err)
	}
	return table, nil
}

func (f *planFlags) readHistory() (*matrix.History, error) {
	name := f.history
	if name == "" {
		name = filepath.Join(filepath.Dir(f.file), filepath.FromSlash(defaultHistory))
	}
	text, err := fsx.ReadFile(name, maxInput)
	if errors.Is(err, fs.ErrNotExist) && f.history == "" {
		return nil, nil //nolint:nilnil // nothing was measured yet
	}
	if err != nil {
		return nil, fmt.Errorf("--history: %w", err)
	}
	history, err := matrix.ReadHistory(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return history, nil
}

func (a *app) planCommand() *cobra.Command {
	var flags planFlags
	var cluster clusterFlags
	var html, dist, env string
	var asJSON, gitHub, quiet bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show which wheels will be built, which not, and why",
		Long: `Expands packages.yml into rows and checks each against what is known of torch, CUDA,
ROCm, Python and operating systems. Nothing is fetched or built.

A selection expression compares the axes package, version, kind, os, platform, python,
toolkit, cuda, rocm, torch, arch, tag, id and custom ones with = != < <= > >= and in (…),
joined by and, or, not and parentheses. A version is compared as precisely as it is
written (cuda=12.8 selects 12.8.1), names may use *, and an axis alone selects the rows
that have it.`,
		Example: `  kiln plan
  kiln plan -f examples/exllamav2/packages.yml --select "cuda>=12.8 and os=ubuntu-*"
  kiln plan --nodes 20 --cpus 32
  kiln plan --env 'demo-*-cp312-*'
  kiln plan --html plan.html
  kiln plan --json | jq -r '.rows[].files[]'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := flags.load(a.stdin, a.secrets)
			if err != nil {
				return err
			}
			p.look(cmp.Or(dist, filepath.Join(filepath.Dir(flags.file), "dist")))
			findings := p.plan.Findings
			if quiet {
				findings = slices.DeleteFunc(slices.Clone(findings), func(d diag.Diagnostic) bool { return d.Severity != diag.Error })
			}
			a.printDiagnostics(findings, p.sources)
			makespan, err := cluster.makespan(p.plan, &flags)
			if err != nil {
				return err
			}
			switch {
			case html != "":
				history, err := flags.readHistory()
				if err != nil {
					return err
				}
				r := report.New(report.Input{Plan: record.Plan{Rows: p.plan.Rows, Skipped: p.plan.Skipped}, History: history, Findings: findings})
				if err := a.writePage(html, r); err != nil {
					return err
				}
			case asJSON:
				if err := a.printJSON(planJSON(p, makespan)); err != nil {
					return err
				}
			case p.plan.Err() != nil:
			case env != "":
				return a.printVariables(p, env)
			case gitHub:
				return a.printGitHubMatrix(p.plan)
			default:
				if err := a.printPlan(p); err != nil {
					return err
				}
				if makespan != nil {
					fmt.Fprint(a.stdout, makespanText(makespan))
				}
			}
			return p.plan.Err()
		},
	}
	flags.register(cmd)
	cluster.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&gitHub, "github-matrix", false, "print a dynamic matrix for GitHub Actions")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no warnings and notes")
	cmd.Flags().StringVar(&env, "env", "", "print the environment variables that the build of this `row` sees")
	cmd.Flags().StringVar(&dist, "dist", "", "the `folder` of finished files, to say which rows are built and which are stale (default: dist beside packages.yml)")
	_ = cmd.MarkFlagDirname("dist")
	cmd.Flags().StringVar(&html, "html", "", "write a page with the matrix to this `file`, for a pull request")
	cmd.MarkFlagsMutuallyExclusive("json", "github-matrix", "html", "env")
	return cmd
}

// printVariables lists the environment of the build of one row.
func (a *app) printVariables(p *planned, name string) error {
	ids := make([]string, len(p.plan.Rows))
	for i := range p.plan.Rows {
		ids[i] = p.plan.Rows[i].ID
	}
	i, err := oneRow(ids, name, "the plan has no row "+name, "`kiln plan` lists them")
	if err != nil {
		return err
	}
	settings, _ := p.plan.Settings(ids[i])
	table := ui.NewTable("VARIABLE", "FROM", "VALUE")
	for _, v := range build.Variables(p.plan.Rows[i], settings) {
		table.Add(v.Name, v.From, v.Value)
	}
	return table.Write(a.stdout, a.out)
}

func (a *app) printGitHubMatrix(p *matrix.Plan) error {
	text, parts, err := p.GitHubMatrix()
	if err != nil {
		return err
	}
	if parts > 1 {
		fmt.Fprintf(a.stderr, "note: %s are split into %d parts, as GitHub makes at most %d jobs from one matrix\n",
			units.Count(len(p.Rows), "row"), parts, matrix.GitHubMaxJobs)
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", text)
	return err
}

// planJSON is the machine form of a plan.
func planJSON(p *planned, makespan *planMakespan) any {
	rows, skipped, findings := p.plan.Rows, p.plan.Skipped, p.plan.Findings
	if rows == nil {
		rows = []matrix.Row{}
	}
	if skipped == nil {
		skipped = []matrix.Skip{}
	}
	if findings == nil {
		findings = diag.List{}
	}
	settings := map[string]matrix.Settings{}
	for i := range rows {
		settings[rows[i].ID], _ = p.plan.Settings(rows[i].ID)
	}
	return struct {
		Format     string                     `json:"format"`
		File       string                     `json:"file"`
		Rows       []matrix.Row               `json:"rows"`
		Settings   map[string]matrix.Settings `json:"settings"`
		Skipped    []matrix.Skip              `json:"skipped"`
		Unselected int                        `json:"unselected"`
		// Served is how many combinations of torch and Python the rows are for.
		Served   int                       `json:"served"`
		Counts   map[string]map[string]int `json:"counts"`
		Estimate matrix.Estimate           `json:"estimate"`
		Makespan *planMakespan             `json:"makespan,omitempty"`
		Findings diag.List                 `json:"findings"`
		// Reuse are the rows that need no compiler.
		Reuse []build.Expected `json:"reuse,omitempty"`
		// Standing says of rows that dist/ has whether they are "built" or "stale".
		Standing map[string]record.Standing `json:"standing,omitempty"`
	}{
		Format: "kiln-plan/1", File: p.file, Rows: rows, Settings: settings, Skipped: skipped, Unselected: p.plan.Unselected,
		Served: p.plan.Served(p.table),
		Counts: map[string]map[string]int{
			"os": p.plan.Counts("os"), "toolkit": p.plan.CountedToolkits(), "torch": p.plan.Counts("torch"),
			"python": p.plan.Counts("python"), "kind": p.plan.Counts("kind"), "package": p.plan.Counts("package"),
		},
		Estimate: p.plan.Estimate, Makespan: makespan, Findings: findings, Standing: p.standing, Reuse: p.reuse,
	}
}

// builtWord is what the table of a plan says of a row.
var builtWord = map[record.Standing]string{record.StandingNone: "-", record.StandingBuilt: "yes", record.StandingStale: "stale"}

// look finds out which rows were built, and from what they are now.
func (p *planned) look(dist string) {
	defer func() {
		p.reuse = build.ExpectReuse(p.plan, cmp.Or(p.table, compat.Default()), func(row *matrix.Row) *record.Record {
			if p.standing[row.ID] != record.StandingBuilt {
				return nil
			}
			r, _ := record.Read(dist, row.ID) // one that cannot be read says nothing
			return r
		})
	}()
	p.standing = map[string]record.Standing{}
	for i := range p.plan.Rows {
		if s := record.Stands(dist, &p.plan.Rows[i]); s != record.StandingNone {
			p.standing[p.plan.Rows[i].ID] = s
		}
	}
}

// printPlan writes the tables that people read.
func (a *app) printPlan(p *planned) error {
	plan := p.plan
	w := &bytes.Buffer{}
	if len(plan.Rows) == 0 {
		fmt.Fprintln(w, "Nothing to do: the plan has no rows.")
	} else {
		// Architecture lists are long and few: a letter in the table, the list
		// below it.
		archs := map[string]string{"": "-"}
		var legend []string
		head := []string{"ROW", "FILE", "OS", "TOOLKIT", "ARCH"}
		if len(p.standing) > 0 {
			head = append(head, "BUILT")
		}
		table := ui.NewTable(head...)
		for i := range plan.Rows {
			r := &plan.Rows[i]
			if archs[r.Arch] == "" {
				archs[r.Arch] = archLetter(len(legend))
				legend = append(legend, "arch "+archs[r.Arch]+": "+r.Arch)
			}
			toolkit, version := r.Toolkit()
			files := r.Files()
			cells := []string{r.ID, files[0], r.OS, strings.TrimSpace(toolkit + " " + version), archs[r.Arch], builtWord[p.standing[r.ID]]}
			table.Add(cells[:len(head)]...)
			for _, file := range files[1:] {
				table.Add("", file)
			}
		}
		if err := table.Write(w, a.out); err != nil {
			return err
		}
		legend = append(imageLegend(p), legend...)
		if len(legend) > 0 {
			fmt.Fprintln(w)
		}
		for _, line := range legend {
			fmt.Fprintln(w, line)
		}
	}
	merged := plan.Merged()
	for i, part := range slices.Sorted(maps.Keys(merged)) {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s is merged into %s\n", part, merged[part])
	}
	for i, e := range p.reuse {
		if i == 0 {
			fmt.Fprintln(w)
		}
		proof := "to be proven by "
		if e.Proven {
			proof = "proven by "
		}
		fmt.Fprintf(w, "%s reuses %s, %s%s: %s\n", e.Row, e.From, proof, e.Proof, e.Reason)
	}
	fmt.Fprintln(w)
	if len(plan.Skipped) > 0 {
		if err := writeSkips(w, a.out, plan.Skipped); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if len(plan.Rows) > 1 {
		for _, c := range []struct {
			name   string
			counts map[string]int
		}{
			{"package", plan.Counts("package")},
			{"os", plan.Counts("os")},
			{"toolkit", plan.CountedToolkits()},
			{"torch", plan.Counts("torch")},
			{"python", plan.Counts("python")},
		} {
			if c.name == "package" && len(c.counts) == 1 {
				continue
			}
			fmt.Fprintf(w, "%-8s %s\n", c.name, countLine(c.counts))
		}
		fmt.Fprintln(w)
	}
	summary := units.Count(len(plan.Rows), "row")
	if n := len(plan.Skipped); n > 0 {
		summary += fmt.Sprintf(", %s skipped", units.Number(n))
	}
	standing := map[record.Standing]int{}
	for _, s := range p.standing {
		standing[s]++
	}
	if n := standing[record.StandingBuilt]; n > 0 {
		summary += fmt.Sprintf(", %s built", units.Number(n))
	}
	if n := standing[record.StandingStale]; n > 0 {
		summary += fmt.Sprintf(", %s stale", units.Number(n))
	}
	if plan.Unselected > 0 {
		summary += fmt.Sprintf(", %s not selected", units.Number(plan.Unselected))
	}
	fmt.Fprintln(w, summary)
	if served := plan.Served(p.table); served > len(plan.Rows) {
		fmt.Fprintf(w, "stable ABIs: %s combinations of torch and Python with %s, %s saved\n",
			units.Number(served), units.Count(len(plan.Rows), "row"), units.Count(served-len(plan.Rows), "row"))
	}
	if n := len(p.reuse); n > 0 {
		fmt.Fprintf(w, "reuse: %s to compile, %s to prove with the wheels of others\n", units.Count(len(plan.Rows)-n, "row"), units.Number(n))
	}
	if len(plan.Rows) > 0 {
		fmt.Fprintln(w, estimateLine(plan.Estimate))
	}
	for _, line := range notShared(p) {
		fmt.Fprintln(w, line)
	}
	_, err := a.stdout.Write(w.Bytes())
	return err
}

// notShared says what of a package is compiled again for every Python, as the last build of one of
// its rows showed.
func notShared(p *planned) (lines []string) {
	state := filepath.Join(filepath.Dir(p.file), filepath.Dir(filepath.FromSlash(defaultHistory)))
	seen := map[string]bool{}
	for i := range p.plan.Rows {
		r := &p.plan.Rows[i]
		if seen[r.Package] {
			continue
		}
		in, err := calls.ReadInputs(filepath.Join(share.CallsDir(state), r.ID+".json"))
		if err != nil {
			continue // not built yet
		}
		seen[r.Package] = true
		if text := in.Python(); text != "" {
			lines = append(lines, r.Package+": "+text)
		}
	}
	return lines
}

// imageLegend says on which systems the wheels from the images of a plan run.
func imageLegend(p *planned) []string {
	images := map[string][]string{} // by glibc
	for i := range p.plan.Rows {
		r := &p.plan.Rows[i]
		settings, _ := p.plan.Settings(r.ID)
		image := settings.Image
		if image == "" && strings.Contains(r.Platform, "linux") {
			image = build.ImageFor(r, "")
		}
		if image == "" || r.Kind != matrix.KindWheel {
			continue
		}
		if glibc := p.table.ImageGLIBC(image); !slices.Contains(images[glibc], image) {
			images[glibc] = append(images[glibc], image)
		}
	}
	var lines []string
	for _, glibc := range slices.Sorted(maps.Keys(images)) {
		tag := "is not in the name; it decides the manylinux tag"
		if glibc != "" {
			tag = glibc + " (wheels: manylinux_" + strings.ReplaceAll(glibc, ".", "_") + " or older)"
		}
		list := images[glibc]
		if more := len(list) - 3; more > 0 {
			list = append(slices.Clone(list[:3]), fmt.Sprintf("and %d more", more))
		}
		lines = append(lines, "image "+strings.Join(list, ", ")+": glibc "+tag)
	}
	return lines
}

// archLetter names the n-th architecture list: a, b, … z, aa, ab, …
func archLetter(n int) string {
	s := string(rune('a' + n%26))
	if n >= 26 {
		return archLetter(n/26-1) + s
	}
	return s
}

// writeSkips lists the rules that removed rows, with how many and one example.
func writeSkips(w io.Writer, term ui.Terminal, skips []matrix.Skip) error {
	type rule struct {
		reason string
		pos    diag.Pos
	}
	counts := map[rule]int{}
	var order []rule
	example := map[rule]string{}
	for _, s := range skips {
		key := rule{s.Reason, s.Pos}
		if counts[key]++; counts[key] == 1 {
			order = append(order, key)
			example[key] = s.Row.ID
		}
	}
	table := ui.NewTable(">SKIPPED", "WHY", "WHERE", "FOR EXAMPLE")
	for _, key := range order {
		table.Add(units.Number(counts[key]), key.reason, key.pos.String(), example[key])
	}
	return table.Write(w, term)
}

func countLine(counts map[string]int) string {
	var parts []string
	for _, v := range matrix.SortedValues(counts) {
		name := v
		if name == "" {
			name = "none"
		}
		parts = append(parts, fmt.Sprintf("%s: %d", name, counts[v]))
	}
	return strings.Join(parts, ", ")
}

// estimateLine says what is known of the work, and that the rest is not.
func estimateLine(e matrix.Estimate) string {
	compiles := "unknown"
	if e.CompileRows > 0 {
		compiles = fmt.Sprintf("%s, %s if shared", units.Number(e.Calls), units.Number(e.UniqueCalls))
	}
	if e.Known == 0 {
		return fmt.Sprintf("compiler calls: %s; time, memory, disk and size: unknown until rows have been built", compiles)
	}
	basis := ""
	if e.Known < e.Rows {
		basis = fmt.Sprintf(" (from %d of %d rows)", e.Known, e.Rows)
	}
	return fmt.Sprintf("compiler calls: %s; time %s, memory up to %s, disk up to %s, %s to publish%s",
		compiles, ui.Duration(e.Time), units.Bytes(e.PeakMemoryBytes), units.Bytes(e.DiskBytes), units.Bytes(e.FileBytes), basis)
}
