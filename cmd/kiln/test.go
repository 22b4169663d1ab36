package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

func (a *app) testCommand() *cobra.Command {
	var flags buildFlags
	var asJSON bool
	var torch, image string
	var imports, expressions []string
	cmd := &cobra.Command{
		Use:   "test ROW|WHEEL…",
		Short: "Install and import wheels in a runtime environment",
		Long: `Tests rows that were built, or wheel files from anywhere, as kiln build does: in an
environment without compilers, with torch held fast and the network off during the
imports. Every compiled module of the wheel is loaded, and must come from the wheel.`,
		Example: `  kiln test hello-cuda-0.1.0-cp311-linux_x86_64
  kiln test dist/*.whl --import hello_cuda`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := a.buildOptions(cmd.Context(), &flags)
			if err != nil {
				return err
			}
			files := slices.DeleteFunc(slices.Clone(args), func(s string) bool { return !strings.HasSuffix(s, ".whl") })
			if len(files) < len(args) && len(files) > 0 {
				return errors.New("give rows or wheel files, not both")
			}
			if len(files) == 0 {
				return a.testRows(cmd.Context(), &flags, opts, args, asJSON)
			}
			return a.testFiles(cmd.Context(), opts, files, asJSON, func(r *matrix.Row, s *matrix.Settings) {
				r.Torch, s.Test.Image, s.Image = torch, image, image
				if len(imports) > 0 {
					s.Test.Imports = imports
				}
				s.Test.Expressions = expressions
			})
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the verdicts as JSON")
	cmd.Flags().StringVar(&torch, "torch", "", "for files: the torch to test with, such as 2.9.0")
	cmd.Flags().StringVar(&image, "image", "", "for files: the container image to test in")
	cmd.Flags().StringSliceVar(&imports, "import", nil, "for files: `modules` to import (default: the package name)")
	cmd.Flags().StringArrayVar(&expressions, "expression", nil, "for files: a Python expression that must evaluate")
	return cmd
}

func (a *app) testRows(ctx context.Context, flags *buildFlags, opts build.Options, args []string, asJSON bool) error {
	p, err := flags.plan.load(a.stdin, a.secrets)
	if err != nil {
		return err
	}
	rows, err := a.selectRows(p, args)
	if err != nil {
		return err
	}
	opts.Retest = true
	view := newBuildView(ui.NewLive(a.stderr, a.err), rows, p.plan)
	opts.OnEvent = view.event
	stop := view.start()
	result, err := build.Run(ctx, p.plan, rows, opts)
	stop()
	if result == nil {
		return err
	}
	if asJSON {
		if err := a.printJSON(jsonResult(result)); err != nil {
			return err
		}
	} else if err := a.printResult(result, "tested"); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return unfinished(result, len(rows))
}

// testFiles tests wheels that no plan knows: what can be known of them is in their names.
func (a *app) testFiles(ctx context.Context, opts build.Options, files []string, asJSON bool, adjust func(*matrix.Row, *matrix.Settings)) error {
	type verdict struct {
		File string `json:"file"`
		record.Test
	}
	builder, err := build.New(opts)
	if err != nil {
		return err
	}
	var verdicts []verdict
	failed := 0
	for _, file := range files {
		name, err := wheel.ParseFilename(filepath.Base(file))
		if err != nil {
			return err
		}
		row := matrix.Row{
			ID: strings.TrimSuffix(filepath.Base(file), ".whl"), Package: wheel.NormalizeName(name.Name), Version: name.Version.Public(),
			Kind: matrix.KindWheel, Platform: strings.Join(name.Platform, "."), Python: pythonOf(name),
			WheelTag: strings.Join(name.Python, ".") + "-" + strings.Join(name.ABI, "."),
		}
		if local := name.Version.Local(); local != "" {
			row.BuildTag = "+" + local
		}
		settings := matrix.Settings{
			Frontend: "pip", TorchSource: matrix.TorchSettings{Kind: "index"},
			Test: matrix.TestSettings{Imports: []string{wheel.FileName(row.Package)}, Timeout: matrix.Seconds(10 * time.Minute)},
		}
		adjust(&row, &settings)
		result, err := builder.TestWheel(ctx, file, settings, row)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			failed++
			fmt.Fprintf(a.stderr, "FAILED %v\n", err)
		} else if !asJSON {
			fmt.Fprintf(a.stdout, "%-8s %s\n", result.Result, filepath.Base(file))
		}
		verdicts = append(verdicts, verdict{file, result})
	}
	if asJSON {
		if err := a.printJSON(verdicts); err != nil {
			return err
		}
	}
	if failed > 0 {
		return rowsFailedError{fmt.Errorf("%s of %d failed", units.Count(failed, "wheel"), len(files))}
	}
	return nil
}

// pythonOf returns the Python to test a wheel with: the one in its tag, or for a wheel
// for many the one of this machine.
func pythonOf(name wheel.Filename) string {
	for _, tag := range name.Python {
		if v, ok := strings.CutPrefix(tag, "cp3"); ok && v != "" {
			python := "3." + v
			if slices.Contains(name.ABI, tag+"t") {
				python += "t"
			}
			return python
		}
	}
	out, err := exec.Command("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output() //nolint:noctx // answers at once
	if err != nil {
		return "3"
	}
	return strings.TrimSpace(string(out))
}

func (a *app) shellCommand() *cobra.Command {
	var flags buildFlags
	cmd := &cobra.Command{
		Use:   "shell ROW",
		Short: "Open a shell in the kept environment of a failed row",
		Long: `Opens a shell with the folder, the variables and the container image that the row was
built with. The source, the virtual environment and everything compiled so far are there.`,
		Example: "  kiln shell hello-cuda-0.1.0-cp311-linux_x86_64",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := findJob(flags.stateDir(), args[0])
			if err != nil {
				return err
			}
			argv, env, err := build.Shell(cmd.Context(), flags.stateDir(), job.ID, ui.Log(a.stderr), func(name string) (sandbox.Maker, error) {
				return flags.sandboxes(a, name, build.FindNetwork(cmd.Context(), flags.indexURL, os.Environ(), a.secrets))
			})
			if err != nil {
				return err
			}
			shell := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...)
			shell.Env, shell.Stdin, shell.Stdout, shell.Stderr = env, a.stdin, ui.Raw(a.stdout), ui.Raw(a.stderr)
			if err := shell.Run(); err != nil {
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					return fmt.Errorf("the shell ended with code %d", exit.ExitCode())
				}
				return err
			}
			return nil
		},
	}
	flags.register(cmd)
	return cmd
}
