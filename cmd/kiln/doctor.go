package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/machine"
)

type doctorFlags struct {
	asJSON, explain, verbose bool
	need                     string
	probe                    machine.ProbeOptions
}

func (a *app) doctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [--explain [TEXT]]",
		Short: "Say what this machine can build and run, what is wrong, and how to fix it",
		Long: `Looks for compilers, CUDA and ROCm toolkits, Python, torch, GPUs and drivers, says what this
machine can build and run with them, and gives the command that fixes what is wrong. Nothing is
installed or changed; torch is not imported.

With --explain, the output of a failed build or import is explained instead: as an argument, or
on standard input.

The exit code is 1 if something is wrong, or if an ability named with --need is missing.`,
		Example: `  kiln doctor
  kiln doctor --need build-cuda,run-cuda --json
  kiln doctor --explain "ImportError: libcudart.so.12: cannot open shared object file"
  python -c 'import exllamav2' 2>&1 | kiln doctor --explain`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.explain:
				return a.explainText(cmd.Context(), args, f)
			case len(args) > 0:
				return fmt.Errorf("%q is not understood\n  to explain an error: kiln doctor --explain TEXT", args[0])
			}
			return a.doctor(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	flags.BoolVar(&f.explain, "explain", false, "explain an error text")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "show where everything was looked for")
	flags.StringVar(&f.need, "need", "", "abilities that must be there: a `list` of "+strings.Join(abilities, ", "))
	flags.StringVar(&f.probe.Python, "python", "", "look at this `interpreter` and its torch")
	flags.StringVar(&f.probe.CUDAHome, "cuda-home", "", "look at the toolkit in this `folder` first")
	complete(cmd, "need", abilities...)
	return cmd
}

// doctor looks at the machine and says what it can do.
func (a *app) doctor(ctx context.Context, f doctorFlags) error {
	for _, id := range commaList(f.need) {
		if !slices.Contains(abilities, id) {
			return fmt.Errorf("--need %q: use %s", id, strings.Join(abilities, ", "))
		}
	}
	if temp, err := os.MkdirTemp("", "kiln-doctor-"); err == nil {
		defer os.RemoveAll(temp)
		f.probe.TempDir = temp
	}
	began := time.Now()
	found, err := a.probe(ctx, f.probe)
	if err != nil {
		return err
	}
	report := machine.Examine(found, compat.Default())
	if a.lookAt == nil && runtime.GOOS == "linux" {
		if err := sandbox.HidesProcesses(); err != nil {
			report.Problems = append(report.Problems, machine.Problem{
				ID: "processes-visible", Severity: compat.Note, Fix: "build code that you do not trust with --runner podman or docker",
				Message: fmt.Sprintf("rows that are built on the host see the other processes of this user, and what is in their environment: %v", err),
			})
		}
	}
	if f.asJSON {
		err = a.printJSON(report)
	} else {
		err = a.printReport(report, f.verbose, time.Since(began))
	}
	if err != nil {
		return err
	}
	return doctorError(report, commaList(f.need))
}

// probe looks at the machine from the working folder and the folder of compiled modules.
func (a *app) probe(ctx context.Context, opts machine.ProbeOptions) (*machine.Machine, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	opts.WorkDir = dir
	if cache, err := jitDir(""); err == nil {
		opts.CacheDirs = append([]string{cache}, otherCaches()...)
	}
	return machine.Probe(ctx, a.host(), opts), nil
}

// explainText explains an error text: the arguments, or standard input.
func (a *app) explainText(ctx context.Context, args []string, f doctorFlags) error {
	text := strings.Join(args, " ")
	if text == "" || text == "-" {
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxExplain))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		text = string(data)
	}
	if strings.TrimSpace(text) == "" {
		return errors.New("nothing to explain: give the error text as an argument or on standard input")
	}
	found, err := a.probe(ctx, f.probe)
	if err != nil {
		return err
	}
	return a.explain(text, found, f.asJSON)
}

// maxExplain is how much of a log is read; what explains a failure is not behind it.
const maxExplain = 64 << 20

// abilities are the names for --need.
var abilities = []string{
	machine.BuildCPP, machine.BuildCUDA, machine.BuildROCm, machine.BuildContainers, machine.CompileAtImport, machine.RunCUDA, machine.RunROCm,
}

// doctorError is the verdict for the exit code.
func doctorError(r *machine.Report, need []string) error {
	var missing []string
	for _, id := range need {
		if !r.Can(id) {
			missing = append(missing, id)
		}
	}
	switch n := countErrors(r); {
	case len(missing) > 0:
		return rowsFailedError{fmt.Errorf("this machine lacks %s", strings.Join(missing, ", "))}
	case n > 0:
		return rowsFailedError{errors.New(units.Count(n, "problem") + " found")}
	}
	return nil
}

func countErrors(r *machine.Report) int {
	n := 0
	for _, p := range r.Problems {
		if p.Severity == compat.Error {
			n++
		}
	}
	return n
}

// printReport is for people: what can be done first, then what is wrong.
func (a *app) printReport(r *machine.Report, verbose bool, took time.Duration) error {
	m := r.Machine
	w := a.stdout
	fmt.Fprintf(w, "%s, %s/%s", cmp.Or(m.SystemName, m.OS), m.OS, m.Arch)
	if m.GLIBC != "" {
		fmt.Fprintf(w, ", glibc %s", m.GLIBC)
	}
	if m.CPUs > 0 {
		fmt.Fprintf(w, ", %s, %s of memory free", units.Count(m.CPUs, "CPU"), units.Bytes(m.MemoryBytes))
	}
	fmt.Fprint(w, "\n\n")
	found := ui.NewTable("FOUND", "VERSION", "WHERE")
	for _, res := range m.Results {
		if res.ID == "machine" || res.Status == machine.Skipped || res.Status == machine.Missing {
			continue
		}
		value := res.Value
		if res.Status != machine.OK {
			value = strings.TrimSpace(value + " (" + string(res.Status) + ")")
		}
		found.Add(res.ID, value, res.Path)
	}
	if err := found.Write(w, a.out); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, ab := range r.Abilities {
		mark := a.paint("no ", "31")
		if ab.OK {
			mark = a.paint("yes", "32")
		}
		fmt.Fprintf(w, "%s  %s: %s\n", mark, ab.Title, ab.Detail)
	}
	if r.Archs.List != "" {
		fmt.Fprintf(w, "\nA module compiled here is for %s (%s).\n", r.Archs.List, archSource[r.Archs.Source])
		for _, warning := range r.Archs.Warnings {
			fmt.Fprintf(w, "  %s\n", warning)
		}
	}
	if verbose {
		fmt.Fprintln(w, "\nLooked for:")
		for _, res := range m.Results {
			if len(res.Looked) > 0 {
				fmt.Fprintf(w, "  %s (%s, %s): %s\n", res.ID, res.Status, ui.Duration(res.Elapsed), strings.Join(res.Looked, ", "))
			}
		}
	}
	if len(r.Problems) == 0 {
		fmt.Fprintln(w, "\nNothing is wrong.")
	}
	for _, p := range r.Problems {
		color := map[compat.Severity]string{compat.Error: "31", compat.Warning: "33"}[p.Severity]
		fmt.Fprintf(w, "\n%s: %s [%s]\n", a.paint(p.Severity.String(), color), p.Message, p.ID)
		for line := range strings.SplitSeq(p.Fix, "\n") {
			fmt.Fprintf(w, "  → %s\n", line)
		}
	}
	_, err := fmt.Fprintf(w, "\nLooked at everything in %s.\n", ui.Duration(took))
	return err
}

var archSource = map[string]string{
	machine.ArchFromUser: "from TORCH_CUDA_ARCH_LIST", machine.ArchFromDevices: "from the GPUs", machine.ArchFromFallback: "no GPU, no list",
}

func (a *app) paint(text, code string) string {
	if !a.out.Color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

var (
	importErrors = regexp.MustCompile(`(?m)^(ImportError|ModuleNotFoundError|NameError)\b`)
	buildTexts   = regexp.MustCompile(`(?m)running build|[Bb]uilding wheel|metadata|setup\.py|ninja: build stopped|^FAILED: |^ERROR: |pip subprocess`)
)

// stageOf guesses whether a text is of an import, as opposed to a build: the same
// missing module is another fault there.
func stageOf(text string) string {
	if importErrors.MatchString(text) && !buildTexts.MatchString(text) {
		return machine.StageImport
	}
	return ""
}

// explain says what an error text means, with what is known of this machine.
func (a *app) explain(text string, m *machine.Machine, asJSON bool) error {
	e := m.Evidence()
	e.ExitCode = 1
	e.LogLines = strings.Split(strings.TrimRight(text, "\n"), "\n")
	e.Stage = stageOf(text)
	// Free space is that of now and of here, not of the failure.
	e.FreeDiskBytes = 0
	list := machine.Diagnose(e)
	known := len(list) > 0 && list[0].ID != "unknown"
	if asJSON {
		if err := a.printJSON(map[string]any{"format": machine.ReportFormat, "diagnoses": list}); err != nil {
			return err
		}
	} else {
		for i, d := range list {
			if i > 0 {
				fmt.Fprintln(a.stdout)
			}
			fmt.Fprintf(a.stdout, "%s [%s, %s]\n\n%s\n", a.paint(d.Title, "1"), d.ID, d.Confidence, d.Detail)
			if len(d.Lines) > 0 {
				fmt.Fprintln(a.stdout)
				for _, l := range d.Lines {
					fmt.Fprintf(a.stdout, "  | %s\n", l)
				}
			}
			fmt.Fprintln(a.stdout)
			for line := range strings.SplitSeq(d.Fix, "\n") {
				fmt.Fprintf(a.stdout, "  → %s\n", line)
			}
		}
	}
	if !known {
		return rowsFailedError{errors.New("the error is not known")}
	}
	return nil
}
