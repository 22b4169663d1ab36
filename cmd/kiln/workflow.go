package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/workflow"
)

func (a *app) workflowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workflow",
		Short: "Write the hosted-CI workflow, and do its steps",
		Long: `Writes the workflow with which hosted CI plans, builds, tests and publishes what packages.yml says. The other
commands are steps of that workflow; they write to the files that GITHUB_OUTPUT and GITHUB_STEP_SUMMARY name, and to the
terminal where there are none.`,
		Example: "  kiln workflow github --write",
	}
	cmd.AddCommand(a.workflowGitHubCommand(), a.workflowPrepareCommand(), a.workflowSummaryCommand(), a.workflowFreeDiskCommand(), a.workflowCUDACommand(), a.workflowROCmCommand())
	return cmd
}

// loadPlan plans, and shows what is wrong.
func (a *app) loadPlan(flags *planFlags) (*planned, error) {
	p, err := flags.load(a.stdin, a.secrets)
	if err != nil {
		return nil, err
	}
	if p.plan.Findings.HasErrors() {
		a.printDiagnostics(p.plan.Findings, p.sources)
		return nil, &diag.ListError{Diagnostics: p.plan.Findings}
	}
	return p, nil
}

func (a *app) workflowGitHubCommand() *cobra.Command {
	var flags planFlags
	var write bool
	var output string
	cmd := &cobra.Command{
		Use:   "github",
		Short: "Print or write the workflow for GitHub Actions",
		Long: `Makes a workflow with a job that plans, one build job per row (Linux in containers, Windows on Windows runners),
release, index and Pages. Run it in the root of the repository, and again after packages.yml has changed its
operating systems, targets or workflow settings.`,
		Example: `  kiln workflow github
  kiln workflow github --write`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p, err := a.loadPlan(&flags)
			if err != nil {
				return err
			}
			if err := workflow.CheckJobs(p.plan); err != nil {
				return err
			}
			sums, err := ownSum()
			if err != nil {
				return err
			}
			text, err := workflow.New(workflow.Options{
				Plan: p.plan, After: p.hostedAfter(), Workflow: p.config.Workflow(), Publish: p.config.Publish(), File: filepath.ToSlash(flags.file),
				Version: kilnVersion(), Sums: sums,
			})
			if err != nil {
				return err
			}
			if !write {
				_, err = a.stdout.Write(text)
				return err
			}
			changed, err := workflow.Write(output, text)
			switch {
			case err != nil:
				return err
			case changed:
				fmt.Fprintf(a.stdout, "%s written\n", output)
			default:
				fmt.Fprintf(a.stdout, "%s is up to date\n", output)
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&write, "write", false, "write the file instead of printing it")
	cmd.Flags().StringVar(&output, "output", workflow.Path, "the `file` to write")
	return cmd
}

// hostedAfter are the rows of the hosted workflow that another one's wheel is expected to serve, each
// with that one.
func (p *planned) hostedAfter() map[string]string {
	hosted := map[string]bool{}
	for _, j := range p.plan.HostedJobs() {
		hosted[j.Row] = true
	}
	rows := slices.DeleteFunc(slices.Clone(p.plan.Rows), func(r matrix.Row) bool { return !hosted[r.ID] })
	settings := func(id string) matrix.Settings { s, _ := p.plan.Settings(id); return s }
	after := map[string]string{}
	for _, c := range build.ReuseClasses(rows, settings, cmp.Or(p.table, compat.Default())) {
		for _, id := range c.Rows[1:] {
			after[id] = c.Rows[0]
		}
	}
	return after
}

// ownSum is the hash of this program, by its platform, if it is one of a release.
func ownSum() (map[string]string, error) {
	if released == "" {
		return nil, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	sum, _, err := fsx.SHA256(program)
	return map[string]string{runtime.GOOS + "-" + runtime.GOARCH: sum}, err
}

// ciFile appends to a file that a variable of the runner names, or else prints.
func (a *app) ciFile(variable, text string) error {
	name := os.Getenv(variable)
	if name == "" {
		_, err := fmt.Fprint(a.stdout, text)
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (a *app) workflowPrepareCommand() *cobra.Command {
	var flags planFlags
	var release string
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Step of the workflow: plan, and hand a matrix to every build job",
		Long: `Plans the rows and writes a matrix for every build job to GITHUB_OUTPUT. A version that cannot be found, a row that
cannot work and a wrong input end the run here, before the first build.`,
		Example: "  kiln workflow prepare --release 0",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if release != "0" && release != "1" {
				return fmt.Errorf("--release %q: use 0 or 1", release)
			}
			p, err := a.loadPlan(&flags)
			if err != nil {
				return err
			}
			text, err := os.ReadFile(filepath.FromSlash(workflow.Path))
			if err != nil {
				text = nil // a run without a workflow, or one of another name
			}
			outputs, err := workflow.Outputs(p.plan, p.hostedAfter(), text)
			if err != nil {
				return err
			}
			if err := workflow.CheckJobs(p.plan); err != nil {
				// The form in which a runner shows it beside the file.
				fmt.Fprintf(a.stdout, "::error file=%s::%s\n", filepath.ToSlash(flags.file), strings.NewReplacer("%", "%25", "\r", "", "\n", "%0A").Replace(err.Error()))
				return err
			}
			if err := a.ciFile("GITHUB_OUTPUT", outputs); err != nil {
				return err
			}
			return a.ciFile("GITHUB_STEP_SUMMARY", workflow.PlanSummary(p.plan, p.hostedAfter(), release))
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&release, "release", "0", "the run's input of that name: 0 or 1")
	complete(cmd, "release", "0", "1")
	return cmd
}

func (a *app) workflowSummaryCommand() *cobra.Command {
	var flags publishingFlags
	var keep bool
	cmd := &cobra.Command{
		Use:     "summary [ROW…]",
		Short:   "Step of the workflow: a table of rows for the summary of a job",
		Example: "  kiln workflow summary",
		RunE: func(cmd *cobra.Command, args []string) error {
			p := &publication{app: a, flags: &flags, dir: filepath.Dir(flags.plan.file)}
			var err error
			if p.planned, err = a.loadPlan(&flags.plan); err != nil {
				return err
			}
			p.settings = p.planned.config.Publish()
			flags.noSide = true
			rows, err := a.selectRows(p.planned, args)
			if err != nil {
				return err
			}
			p.planned.plan.Rows, p.planned.plan.Skipped = rows, nil
			inv, err := p.inventory(cmd.Context())
			if err != nil {
				return err
			}
			if keep {
				if err := workflow.KeepFailures(cmp.Or(flags.dist, filepath.Join(p.dir, "dist")), rows, inv); err != nil {
					return err
				}
			}
			return a.ciFile("GITHUB_STEP_SUMMARY", workflow.Summary(inv))
		},
	}
	flags.plan.register(cmd)
	cmd.Flags().StringVar(&flags.dist, "dist", "", "the `folder` with finished files (default: dist beside packages.yml)")
	cmd.Flags().StringVar(&flags.state, "state", "", "the `folder` with the journal of builds (default: .kiln beside packages.yml)")
	cmd.Flags().BoolVar(&keep, "keep-failures", false, "write why rows failed into dist/failures, for the job that publishes")
	return cmd
}

func (a *app) workflowFreeDiskCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "free-disk",
		Short:   "Step of the workflow: remove what hosted runners have too much of",
		Long:    "Removes large folders that builds do not need, on runners that GitHub hosts and nowhere else.",
		Example: "  kiln workflow free-disk",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Getenv("GITHUB_ACTIONS") != "true" || os.Getenv("RUNNER_ENVIRONMENT") != "github-hosted" {
				return errors.New("this is no runner that GitHub hosts; nothing is removed from other machines")
			}
			before, after, err := workflow.FreeDisk(cmd.Context(), os.Environ(), ui.Log(a.stderr))
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s were free, %s are\n", units.Bytes(before), units.Bytes(after))
			return nil
		},
	}
}

func (a *app) workflowCUDACommand() *cobra.Command {
	var flags planFlags
	var dir, source string
	cmd := &cobra.Command{
		Use:   "cuda ROW",
		Short: "Step of the workflow: put the CUDA toolkit of a Windows row together",
		Long: `Fetches the redistributable archives of the row's CUDA version, checks their hashes, unpacks them into one folder, and tells
later steps about it through GITHUB_ENV and GITHUB_PATH. workflow.windows_cuda of packages.yml names another version where NVIDIA has no
archives of the row's own.`,
		Example: "  kiln workflow cuda exllamav2-0.3.2-cu128-torch2.9.0-cp313-win_amd64",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := a.loadPlan(&flags)
			if err != nil {
				return err
			}
			rows, err := a.selectRows(p, args)
			if err != nil {
				return err
			}
			wanted := rows[0].CUDA
			if wanted == "" {
				return fmt.Errorf("the row %s has no CUDA toolkit", args[0])
			}
			version := cmp.Or(p.config.Workflow().WindowsCUDA[wanted], wanted)
			if version != wanted {
				fmt.Fprintf(a.stderr, "kiln: warning: the row says CUDA %s and is built with %s\n", wanted, version)
			}
			if dir == "" {
				dir = filepath.Join(cmp.Or(os.Getenv("RUNNER_TEMP"), os.TempDir()), "cuda-"+version)
			}
			toolkit, err := workflow.InstallCUDA(cmd.Context(), workflow.CUDAOptions{Version: version, Source: source, Dir: dir, Retry: publish.Retry{Log: a.log}})
			if err != nil {
				return err
			}
			table := ui.NewTable("COMPONENT", "VERSION", "SHA-256")
			for _, c := range toolkit.Components {
				table.Add(c.Name, c.Version, c.SHA256)
			}
			if err := table.Write(a.stdout, a.out); err != nil {
				return err
			}
			if err := a.ciFile("GITHUB_ENV", fmt.Sprintf("CUDA_PATH=%s\nCUDA_HOME=%s\nDISTUTILS_USE_SDK=1\n", dir, dir)); err != nil {
				return err
			}
			return a.ciFile("GITHUB_PATH", filepath.Join(dir, "bin")+"\n")
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&dir, "to", "", "the `folder` for the toolkit (default: one for temporary files)")
	cmd.Flags().StringVar(&source, "source", "", "the `address` of the archives (default NVIDIA's)")
	return cmd
}

func (a *app) workflowROCmCommand() *cobra.Command {
	var flags planFlags
	var source, fingerprint string
	cmd := &cobra.Command{
		Use:   "rocm ROW",
		Short: "Step of the workflow: install the ROCm release of a row that is built on the runner itself",
		Long: `Adds AMD's repository for the row's ROCm release and this Ubuntu, with the key checked by its fingerprint, installs the HIP
SDK with apt, and tells later steps about it through GITHUB_ENV and GITHUB_PATH. Rows that are built in containers do not need it: their image
has ROCm. It refuses to run on a machine that GitHub does not host.`,
		Example: "  kiln workflow rocm exllamav2-0.3.2-rocm6.1-torch2.4.0-cp312-linux_x86_64",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Getenv("GITHUB_ACTIONS") != "true" || os.Getenv("RUNNER_ENVIRONMENT") != "github-hosted" {
				return errors.New("this is no runner that GitHub hosts; nothing is installed on other machines")
			}
			p, err := a.loadPlan(&flags)
			if err != nil {
				return err
			}
			rows, err := a.selectRows(p, args)
			if err != nil {
				return err
			}
			version := rows[0].ROCm
			if version == "" {
				return fmt.Errorf("the row %s has no ROCm", args[0])
			}
			home, err := workflow.InstallROCm(cmd.Context(), workflow.ROCmOptions{
				Version: version, Source: source, Fingerprint: fingerprint, Retry: publish.Retry{Log: a.log},
				Env: os.Environ(), Output: ui.Log(a.stderr),
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "ROCm %s is in %s\n", version, home)
			if err := a.ciFile("GITHUB_ENV", fmt.Sprintf("ROCM_HOME=%s\nROCM_PATH=%s\n", home, home)); err != nil {
				return err
			}
			return a.ciFile("GITHUB_PATH", home+"/bin\n")
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&source, "source", "", "the `address` of the packages (default AMD's)")
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "the `fingerprint` of the key that signs them (default AMD's)")
	return cmd
}
