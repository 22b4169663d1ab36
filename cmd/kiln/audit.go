package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
)

// auditFlags say what wheels are compared with.
type auditFlags struct {
	torch, arch, gfx, python, platform string
	modules, severity                  []string
	explain, torchStable               string
	quick, noTable, asJSON, verbose    bool
	stable                             bool
}

func (a *app) auditCommand() *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit WHEEL…",
		Short: "Say whether wheels will install, load and run, without running them",
		Long: `Looks into wheels, or single libraries, and says what is wrong with them: names, RECORD and
metadata that are not true, symbols that the torch in question does not have, a C++ ABI that
differs, the glibc and libstdc++ that are needed, the GPUs there is code for. Nothing is
imported or run; no GPU and no torch is needed.

The rules, with causes and fixes, are in docs/audit.md; --severity changes how much one weighs.`,
		Example: `  kiln audit dist/*.whl
  kiln audit my_ext-1.0+cu124.torch2.6.0-cp312-cp312-linux_x86_64.whl --torch 2.6.0 --arch "8.0 9.0+PTX"
  kiln audit my_ext.whl --torch path/to/torch.whl --severity arch-extra=error --json
  kiln audit my_ext.whl --explain torch=2.13
  kiln audit my_ext.whl --stable`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.audit(cmd, args, &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.torch, "torch", "", "compare with this torch: a `wheel, folder, snapshot` or version (default: the one the wheel names)")
	flags.StringVar(&f.arch, "arch", "", "CUDA `targets` there must be code for, such as \"8.0 9.0+PTX\"")
	flags.StringVar(&f.gfx, "gfx", "", "AMD `targets` there must be code for, such as \"gfx90a gfx1100\"")
	flags.StringVar(&f.python, "python", "", "the Python `version` it is for, such as 3.12 or 3.13t (default: by its tags)")
	flags.StringVar(&f.platform, "platform", "", "a platform `tag` it must be good for (default: those of the file name)")
	flags.StringSliceVar(&f.modules, "module", nil, "an extension module that must be there, by `name`; may be repeated")
	flags.StringSliceVar(&f.severity, "severity", nil, "weigh a rule differently: `rule=off`, note, warning or error; may be repeated")
	flags.BoolVar(&f.quick, "no-digests", false, "do not compare contents with RECORD, and leave all but native files unread")
	flags.BoolVar(&f.noTable, "no-table", false, "do not try every torch on record")
	flags.StringVar(&f.explain, "explain", "", "say only why wheels load with this torch or not: `torch=2.13`")
	flags.StringVar(&f.torchStable, "torch-stable", "", "refuse what is not for this torch `release` and all later ones by libtorch's stable ABI, such as 2.10")
	flags.BoolVar(&f.stable, "stable", false, "list what keeps wheels off libtorch's stable ABI, where it is used, and what replaces it")
	cmd.MarkFlagsMutuallyExclusive("explain", "stable")
	cmd.MarkFlagsMutuallyExclusive("explain", "no-table")
	cmd.MarkFlagsMutuallyExclusive("stable", "no-table")
	cmd.MarkFlagsMutuallyExclusive("torch-stable", "no-table")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show notes, causes, and every native file")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	complete(cmd, "torch", audit.Builtins()...)
	cmd.AddCommand(a.auditSnapshotCommand(), a.auditRulesCommand())
	return cmd
}

func (f *auditFlags) options(cmd *cobra.Command) (audit.Options, error) {
	opts := audit.Options{Python: f.python, Platform: f.platform, Modules: f.modules, SkipDigests: f.quick, NoTable: f.noTable, Places: f.stable, TorchStable: f.torchStable}
	var err error
	if f.torchStable != "" && !slices.ContainsFunc(audit.Builtins(), func(v string) bool {
		return strings.HasPrefix(v, f.torchStable+".") || strings.HasPrefix(v, f.torchStable+"+")
	}) {
		return opts, fmt.Errorf("--torch-stable %q: not a release on record, such as 2.10", f.torchStable)
	}
	if opts.Archs, err = compat.ParseArchList(f.arch); err != nil {
		return opts, fmt.Errorf("--arch: %w", err)
	}
	if opts.Archs.Native() {
		return opts, errors.New("--arch: native is not known here; name the targets")
	}
	if opts.Gfx, err = compat.ParseGfxList(f.gfx); err != nil {
		return opts, fmt.Errorf("--gfx: %w", err)
	}
	if opts.Severity, err = audit.ParseSeverities(f.severity); err != nil {
		return opts, fmt.Errorf("--severity: %w", err)
	}
	if f.torch != "" {
		if opts.Torch, err = audit.OpenSnapshot(cmd.Context(), f.torch, audit.SnapshotOptions{}); err != nil {
			return opts, fmt.Errorf("--torch: %w", err)
		}
	}
	return opts, nil
}

func (a *app) audit(cmd *cobra.Command, files []string, f *auditFlags) error {
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}
	explain, ok := strings.CutPrefix(f.explain, "torch=")
	if f.explain != "" && (!ok || explain == "") {
		return fmt.Errorf("--explain %q: want torch=VERSION, such as torch=2.13", f.explain)
	}
	var reports []*audit.Report
	failed := 0
	for _, file := range files {
		r, err := audit.Check(cmd.Context(), file, opts)
		if err != nil {
			return err
		}
		bad := r.Worst() == audit.Error
		if explain != "" {
			v := r.VerdictOf(explain)
			bad = v != nil && !v.OK
		}
		if bad && !f.stable {
			failed++
		}
		if f.asJSON {
			reports = append(reports, r)
			continue
		}
		switch {
		case explain != "":
			err = a.explainTorch(r, explain)
		case f.stable:
			err = a.printStable(r)
		default:
			err = a.printAudit(r, f.verbose)
		}
		if err != nil {
			return err
		}
	}
	if f.asJSON {
		if err := a.printJSON(map[string]any{"wheels": reports}); err != nil {
			return err
		}
	}
	if failed > 0 && explain != "" {
		return rowsFailedError{fmt.Errorf("%s of %d do not work with torch %s", units.Count(failed, "file"), len(files), explain)}
	}
	if failed > 0 {
		return rowsFailedError{fmt.Errorf("%s of %d have errors", units.Count(failed, "file"), len(files))}
	}
	return nil
}

// printAudit shows a report to people: what was found out, then what is wrong.
func (a *app) printAudit(r *audit.Report, verbose bool) error {
	fmt.Fprintf(a.stdout, "%s  %s\n", r.File, units.Bytes(r.Size))
	for _, line := range auditFacts(r) {
		fmt.Fprintf(a.stdout, "  %-9s %s\n", line[0], line[1])
	}
	shown, notes := 0, 0
	for i := range r.Findings {
		finding := &r.Findings[i]
		if finding.Severity == audit.Note && !verbose {
			notes++
			continue
		}
		shown++
		place := ""
		if finding.File != "" {
			place = finding.File + ": "
		}
		fmt.Fprintf(a.stdout, "  %s [%s] %s%s\n", a.severityWord(finding.Severity), finding.Rule, place, finding.Message)
		if verbose {
			fmt.Fprintf(a.stdout, "      cause: %s\n", finding.Cause)
		}
		if finding.Severity == audit.Error || verbose {
			fmt.Fprintf(a.stdout, "      fix: %s\n", finding.Fix)
		}
	}
	switch {
	case shown == 0 && notes == 0:
		fmt.Fprintln(a.stdout, "  no problem found")
	case notes > 0:
		fmt.Fprintf(a.stdout, "  %s; -v shows them\n", units.Count(notes, "note"))
	}
	if verbose {
		return a.printObjects(r)
	}
	return nil
}

// printStable lists what keeps a wheel off the stable ABI.
func (a *app) printStable(r *audit.Report) error {
	abi := r.TorchABI
	switch {
	case abi == nil:
		fmt.Fprintf(a.stdout, "%s  nothing is known about its use of torch\n", r.File)
		return nil
	case len(abi.Unstable) == 0:
		fmt.Fprintf(a.stdout, "%s  torch %s: nothing keeps it off the stable ABI\n", r.File, abi.Summary)
		return nil
	}
	fmt.Fprintf(a.stdout, "%s  %s of torch outside the stable ABI\n\n", r.File, units.Count(len(abi.Unstable), "name"))
	t := ui.NewTable("NAME", "CALLED AT", "IN ITS PLACE")
	places := 0
	for _, advice := range abi.Advice() {
		places += len(advice.Places)
		t.Add(advice.Name, strings.Join(advice.Places, " "), cmp.Or(advice.Use, "-"))
	}
	if err := t.Write(a.stdout, a.out); err != nil {
		return err
	}
	if places == 0 {
		fmt.Fprintln(a.stdout, "\nno debug information: built with -g -O2, the wheel tells where they are called")
	}
	return nil
}

// explainTorch says why a wheel works with a torch or not.
func (a *app) explainTorch(r *audit.Report, version string) error {
	if r.TorchABI != nil && r.TorchABI.Kind == audit.TorchAny {
		fmt.Fprintf(a.stdout, "%s  loads with any torch: it uses nothing of torch's libraries\n", r.File)
		return nil
	}
	v := r.VerdictOf(version)
	if v == nil {
		var known []string
		for _, v := range r.WorksWith {
			known = append(known, v.Torch)
		}
		return fmt.Errorf("torch %s is not on record; there are %s. `kiln audit snapshot` records one, --torch compares with it", version, joinOr(known, "none for this platform"))
	}
	if v.OK {
		fmt.Fprintf(a.stdout, "%s  loads with torch %s: it has all names that are asked for\n", r.File, v.Torch)
		return nil
	}
	what, reason := "does not load", v.Reason
	if v.Layout != "" { // the loader does not notice, and not every path through the code does
		what = "is not safe"
	}
	if name, ok := strings.CutPrefix(reason, "no "); ok {
		reason = "lacks " + name
	}
	fmt.Fprintf(a.stdout, "%s  %s with torch %s, which %s\n", r.File, what, v.Torch, reason)
	if v.Symbol == "" {
		return nil
	}
	fmt.Fprintf(a.stdout, "  %-9s %s\n  %-9s %s\n", "name", v.Name, "used by", v.File)
	history := "no torch on record has it"
	switch {
	case v.Removed != "":
		history = fmt.Sprintf("torch %s has it; %s removed it", v.Has, v.Removed)
	case v.Has != "":
		history = fmt.Sprintf("torch %s has it", v.Has)
	}
	fmt.Fprintf(a.stdout, "  %-9s %s\n", "history", history)
	if v.Missing > 1 {
		fmt.Fprintf(a.stdout, "  %-9s %s\n", "besides", units.Count(v.Missing-1, "other name")+" or libraries")
	}
	return nil
}

func (a *app) severityWord(s audit.Severity) string {
	word := s.String()
	if !a.out.Color {
		return word
	}
	color := map[audit.Severity]string{audit.Error: "31", audit.Warning: "33", audit.Note: "36"}[s]
	return "\x1b[" + color + "m" + word + "\x1b[0m"
}

// auditFacts are the lines about the whole wheel.
func auditFacts(r *audit.Report) [][2]string {
	var out [][2]string
	add := func(name, format string, args ...any) {
		out = append(out, [2]string{name, fmt.Sprintf(format, args...)})
	}
	modules := []string{}
	abi, python := map[audit.CXXABI]bool{}, ""
	for i := range r.Objects {
		o := &r.Objects[i]
		if o.Module != "" {
			modules = append(modules, o.Module)
			if o.StableABI != "" {
				python = "stable ABI, from Python " + o.StableABI
			}
		}
		if o.CXXABI != audit.CXXABIUnknown {
			abi[o.CXXABI] = true
		}
	}
	if len(r.Objects) > 0 {
		few := modules
		if len(few) > 4 {
			few = append(few[:4:4], fmt.Sprintf("and %d more", len(modules)-4))
		}
		add("native", "%s; modules: %s", units.Count(len(r.Objects), "file"), joinOr(few, "none"))
	}
	if p := r.Platform; p != nil {
		needs := []string{}
		for _, v := range [][2]string{{"glibc ", p.GLIBC}, {"GLIBCXX_", p.GLIBCXX}, {"CXXABI_", p.CXXABI}} {
			if v[1] != "" {
				needs = append(needs, v[0]+v[1])
			}
		}
		add("platform", "%s (needs %s)", p.Tag, joinOr(needs, "no versions"))
		if len(p.External) > 0 {
			add("outside", "%s", strings.Join(p.External, " "))
		}
	}
	if len(r.External) > 0 {
		add("outside", "%s", strings.Join(r.External, " "))
	}
	if python != "" && len(modules) == 1 {
		add("python", "%s", python)
	}
	if len(abi) == 1 {
		for v := range abi {
			add("C++ ABI", "%s", v)
		}
	}
	if archs := r.Archs(); archs != "" {
		add("GPUs", "%s", archs)
	}
	if r.TorchABI != nil {
		add("torch", "%s", r.TorchABI.Summary)
	}
	return out
}

func joinOr(list []string, empty string) string {
	if len(list) == 0 {
		return empty
	}
	return strings.Join(list, ", ")
}

// printObjects shows each native file, and each torch that was tried.
func (a *app) printObjects(r *audit.Report) error {
	if len(r.Objects) > 0 {
		fmt.Fprintln(a.stdout)
		t := ui.NewTable("FILE", ">SIZE", "GLIBC", "GLIBCXX", "C++ ABI", "GPUS", "NEEDS")
		for i := range r.Objects {
			o := &r.Objects[i]
			t.Add(o.Path, units.Bytes(o.Size), o.GLIBC, o.GLIBCXX, string(o.CXXABI), o.Archs(), strings.Join(o.Needed, " "))
		}
		if err := t.Write(a.stdout, a.out); err != nil {
			return err
		}
	}
	if len(r.WorksWith) > 0 {
		fmt.Fprintln(a.stdout)
		t := ui.NewTable("TORCH", "WORKS", ">MISSING", "FIRST")
		for _, v := range r.WorksWith {
			works, missing := "yes", ""
			if !v.OK {
				works, missing = "no", fmt.Sprint(v.Missing)
			}
			t.Add(v.Torch, works, missing, v.Reason)
		}
		return t.Write(a.stdout, a.out)
	}
	return nil
}

func (a *app) auditSnapshotCommand() *cobra.Command {
	var out, python, system string
	cmd := &cobra.Command{
		Use:   "snapshot TORCH",
		Short: "Record what a torch offers to extensions, for audits without it",
		Long: `Writes a snapshot, about 1 MB, of a torch wheel or of an installed torch: its libraries, what they
need, and the names of their symbols. The name of the file has the version and a hash of the
content. With --python it is of an interpreter, with --system of the libraries of a system.`,
		Example: `  kiln audit snapshot torch-2.6.0-cp312-cp312-manylinux1_x86_64.whl --out snapshots/
  kiln audit snapshot --python 3.12 /usr/bin/python3.12`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var s *audit.Snapshot
			var err error
			switch {
			case python != "":
				s, err = audit.TakeFiles(audit.KindPython, python, args)
			case system != "":
				s, err = audit.TakeFiles(audit.KindSystem, system, args)
			case len(args) > 1:
				return errors.New("one torch at a time")
			default:
				s, err = audit.TakeSnapshot(cmd.Context(), args[0], audit.SnapshotOptions{})
			}
			if err != nil {
				return err
			}
			return a.writeSnapshot(s, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&out, "out", "o", ".", "the `folder` to write to")
	flags.StringVar(&python, "python", "", "record a Python interpreter of this `version`: its executable or libpython")
	flags.StringVar(&system, "system", "", "record libraries of a system with this `version` of glibc")
	cmd.MarkFlagsMutuallyExclusive("python", "system")
	_ = cmd.MarkFlagDirname("out")
	return cmd
}

func (a *app) writeSnapshot(s *audit.Snapshot, dir string) error {
	name, err := s.FileName()
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	if _, err := s.WriteTo(&buf); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	file := filepath.Join(dir, name)
	if err := fsx.WriteFile(file, buf.Bytes(), 0o666); err != nil {
		return err
	}
	symbols := 0
	for i := range s.Libraries {
		symbols += s.Libraries[i].Count
	}
	fmt.Fprintf(a.stdout, "%s: %s, %s, %s\n", file, units.Count(len(s.Libraries), "file"), units.Count(symbols, "symbol"), units.Bytes(int64(buf.Len())))
	return nil
}

func (a *app) auditRulesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "rules",
		Short:   "List what the audit looks for, with causes and fixes",
		Example: "  kiln audit rules --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.printJSON(map[string]any{"rules": audit.Rules()})
			}
			t := ui.NewTable("RULE", "SEVERITY", "MEANS")
			for _, r := range audit.Rules() {
				t.Add(r.ID, r.Severity.String(), r.Title)
			}
			return t.Write(a.stdout, a.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
