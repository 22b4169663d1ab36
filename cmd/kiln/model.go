package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/model/exl2"
)

func (a *app) modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Compile, inspect and verify EXL2 models; reshard and compare models",
		Long: `Turns a finished EXL2 quantization into a folder that exllamav2, TabbyAPI and
text-generation interfaces load, and looks into such folders. reshard and diff take any model
in safetensors files. Needs no GPU and no Python.`,
		Example: "  kiln model compile --job work/ --out my-model-exl2-4.0bpw",
	}
	var links exl2.Links
	cmd.PersistentFlags().BoolVar((*bool)(&links), "follow-links", false,
		"read files through links that lead out of a model's folder")
	cmd.AddCommand(a.modelCompileCommand(&links), a.modelPlanCommand(&links), a.modelInspectCommand(&links),
		a.modelVerifyCommand(&links), a.modelSignCommand(&links), a.modelReshardCommand(&links), a.modelDiffCommand(&links))
	return cmd
}

// compileFlags are the flags that decide what a compile writes.
type compileFlags struct {
	job, model, out string
	jobFile         string
	compat          bool
	mode            exl2.Mode // as far as the user has said one
	names           string
	merge           bool
	shardSize       string
	version         string
	manifest        string
	skip            []string
	asJSON          bool
	links           *exl2.Links
}

func (f *compileFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.job, "job", "", "the converter's working `folder`, with job_new.json and out_tensor/ (required)")
	flags.StringVar(&f.model, "model", "", "the source model `folder` (default: the one in the job)")
	flags.StringVar(&f.out, "out", "", "the `folder` to write (default: the one in the job; without one, the weights go into the working folder)")
	flags.StringVar(&f.jobFile, "job-file", "", "read the job from this `file` instead of job_new.json")
	flags.BoolVar(&f.compat, "compat", false, "write the files of the original converter, byte for byte")
	flags.StringVar(&f.shardSize, "shard-size", "", "largest `size` of the tensors of a shard, such as \"8 GiB\", or \"none\" (default: the job's)")
	flags.StringVar(&f.manifest, "manifest", "", "write the manifest to this `file` (default: into the folder, with --compat nowhere)")
	flags.StringSliceVar(&f.skip, "skip", nil, "patterns of source files not to copy (default "+strings.Join(exl2.DefaultSkip(), ",")+")")
	flags.StringVar(&f.names, "names", "", "how shards are named: model or output (default model, with --compat output)")
	flags.BoolVar(&f.merge, "merge", false, "put the files into the folder and leave what else it has")
	flags.StringVar(&f.version, "converter-version", "", "the `release` of exllamav2 that quantized, for config.json "+
		"(default: what the job or its layers say, else "+exl2.ConverterVersion+")")
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if f.compat {
			f.mode = exl2.Compat
		} else if cmd.Flags().Changed("compat") {
			f.mode = exl2.Default
		}
	}
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagRequired("job")
	for _, name := range []string{"job", "model", "out"} {
		_ = cmd.MarkFlagDirname(name)
	}
	complete(cmd, "names", string(exl2.ModelNames), string(exl2.OutputNames))
}

// shardBytes reads a shard size, which is negative for "none" and 0 for nothing.
func shardBytes(text string) (int64, error) {
	switch text {
	case "":
		return 0, nil
	case "none":
		return -1, nil
	}
	size, err := units.ParseBytes(text)
	if err != nil {
		return 0, fmt.Errorf("--shard-size: %w", err)
	}
	return size, nil
}

// shardNames checks --names.
func shardNames(text string) (exl2.Names, error) {
	names := exl2.Names(text)
	if names != "" && names != exl2.ModelNames && names != exl2.OutputNames {
		return "", fmt.Errorf("--names %q: use %s or %s", text, exl2.ModelNames, exl2.OutputNames)
	}
	return names, nil
}

// plan reads the inputs and plans. Problems of the inputs are in the error.
func (f *compileFlags) plan(ctx context.Context) (*exl2.Plan, error) {
	opts := exl2.PlanOptions{Out: f.out, Mode: f.mode, Merge: f.merge, Version: f.version, ManifestPath: f.manifest, Skip: f.skip}
	var err error
	if opts.ShardBytes, err = shardBytes(f.shardSize); err != nil {
		return nil, err
	}
	if opts.Names, err = shardNames(f.names); err != nil {
		return nil, err
	}
	inventory, problems := exl2.ReadInventory(ctx, exl2.Options{WorkDir: f.job, JobFile: f.jobFile, ModelDir: f.model, Links: *f.links})
	if inventory == nil {
		return nil, problems.Err()
	}
	return inventory.Plan(opts)
}

// printProblems lists all problems, which the error of a Problems does not, and turns
// the error into a count.
func (a *app) printProblems(err error, asJSON bool) error {
	var problems exl2.Problems
	if !errors.As(err, &problems) {
		return err
	}
	if asJSON {
		if err := a.printJSON(map[string]any{"problems": problems}); err != nil {
			return err
		}
	}
	for _, p := range problems {
		fmt.Fprintln(a.stderr, p)
	}
	return fmt.Errorf("%s; nothing was written", units.Count(len(problems), "problem"))
}

func (a *app) modelPlanCommand(links *exl2.Links) *cobra.Command {
	flags := compileFlags{links: links}
	cmd := &cobra.Command{
		Use:     "plan",
		Short:   "Show what a compile would write, and everything that is missing",
		Example: "  kiln model plan --job work/ --out my-model-exl2",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.plan(cmd.Context())
			if err != nil {
				return a.printProblems(err, flags.asJSON)
			}
			if flags.asJSON {
				return a.printJSON(p)
			}
			return p.WriteText(a.stdout)
		},
	}
	flags.register(cmd)
	return cmd
}

func (a *app) modelCompileCommand(links *exl2.Links) *cobra.Command {
	flags := compileFlags{links: links}
	var dryRun, replace, strict, status bool
	var hash string
	cmd := &cobra.Command{
		Use:   "compile",
		Short: "Assemble a finished EXL2 quantization into a model folder",
		Long: `Checks all inputs, then writes the folder beside its final place and renames it when
everything is on disk. Run again after an interruption, it goes on where it stopped. The
sources are only read.`,
		Example: "  kiln model compile --job work/ --model llama-3-8b/ --out llama-3-8b-exl2-4.0bpw",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hash != "on" && hash != "off" {
				return fmt.Errorf("--hash %q: use on or off", hash)
			}
			p, err := flags.plan(cmd.Context())
			if err != nil {
				return a.printProblems(err, flags.asJSON)
			}
			if dryRun {
				if flags.asJSON {
					return a.printJSON(p)
				}
				return p.WriteText(a.stdout)
			}
			for _, n := range p.Notices {
				fmt.Fprintln(a.stderr, "warning:", n)
			}
			progress := ui.NewProgress(a.stderr, a.err, filepath.Base(p.Out))
			stage := compileStatus{w: a.stdout, on: status}
			result, err := exl2.Write(cmd.Context(), p, exl2.WriteOptions{
				NoHash: hash == "off", Strict: strict, Replace: replace, Log: a.log,
				Progress: func(p exl2.Progress) {
					progress.Set(p.Done, p.Total)
					stage.set(p)
				},
			})
			progress.Close()
			if err != nil {
				return a.printProblems(err, flags.asJSON)
			}
			stage.finish()
			for _, name := range result.Removed {
				fmt.Fprintf(a.stderr, "warning: %s was of an earlier compile and is removed\n", filepath.Join(result.Out, name))
			}
			for _, n := range result.NonFinite {
				fmt.Fprintf(a.stderr, "warning: %s; the model may compute nonsense (--strict refuses such a model)\n", n)
			}
			if flags.asJSON {
				return a.printJSON(result)
			}
			return a.printWritten(result)
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the plan and write nothing")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace an existing folder, whole and in one step")
	cmd.Flags().BoolVar(&status, "status-output", false, "print the converter's lines of progress, [STATUS]{…}[/STATUS]")
	cmd.Flags().BoolVar(&strict, "strict", false, "stop at values that half precision cannot hold, instead of counting them")
	cmd.Flags().StringVar(&hash, "hash", "on", "whether to compute SHA-256 digests on the way: on or off")
	complete(cmd, "hash", "on", "off")
	return cmd
}

// printWritten says in a line what was written, and how fast.
func (a *app) printWritten(result *exl2.Result) error {
	resumed := ""
	if result.Resumed > 0 {
		resumed = fmt.Sprintf(" (%s taken over from an interrupted run)", units.Count(result.Resumed, "shard"))
	}
	_, err := fmt.Fprintf(a.stdout, "%s: %s in %s%s, %s, %s/s\n", result.Out, units.Bytes(result.Bytes), units.Count(result.Shards, "shard"), resumed,
		ui.Duration(result.Elapsed), units.Bytes(int64(float64(result.Bytes)/max(result.Elapsed.Seconds(), 1e-3))))
	return err
}

// compileStatus prints progress as exllamav2's converter does for programs that run it. The last
// line, completion 1.0, comes when everything is in its place.
type compileStatus struct {
	w     io.Writer
	on    bool
	shown int64 // in parts of a hundred
}

func (s *compileStatus) set(p exl2.Progress) {
	if at := 100 * p.Done / max(p.Total, 1); s.on && at > s.shown && at < 100 {
		s.shown = at
		fmt.Fprintf(s.w, "[STATUS]{\"stage\": \"Compiling\", \"completion\": %s}[/STATUS]\n", strconv.FormatFloat(float64(at)/100, 'f', -1, 64))
	}
}

func (s *compileStatus) finish() {
	if s.on {
		fmt.Fprintln(s.w, `[STATUS]{"stage": "Compiling", "completion": 1.0}[/STATUS]`)
	}
}

func (a *app) modelInspectCommand(links *exl2.Links) *cobra.Command {
	var asJSON bool
	var html string
	cmd := &cobra.Command{
		Use:     "inspect FOLDER",
		Short:   "Show what is in an EXL2 model: bits per weight by layer and module, sizes, groups",
		Example: "  kiln model inspect my-model-exl2 --html report.html",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := exl2.Inspect(cmd.Context(), args[0], *links)
			if err != nil {
				return err
			}
			if html != "" {
				if err := writeReport(html, info.WriteHTML); err != nil {
					return err
				}
			}
			switch {
			case asJSON:
				err = a.printJSON(info)
			case html == "":
				err = info.WriteText(a.stdout, a.out.Color)
			default:
				_, err = fmt.Fprintln(a.stdout, "written to", html)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&html, "html", "", "write a page with a heat map to this `file`")
	return cmd
}

// writeReport writes a file that is complete or not there.
func writeReport(path string, write func(io.Writer) error) error {
	var page bytes.Buffer
	if err := write(&page); err != nil {
		return err
	}
	return fsx.WriteFile(path, page.Bytes(), 0o644)
}

func (a *app) modelVerifyCommand(links *exl2.Links) *cobra.Command {
	var asJSON bool
	var opts exl2.VerifyOptions
	var trust trustFlags
	cmd := &cobra.Command{
		Use:   "verify FOLDER",
		Short: "Check a model against its manifest, the rules of EXL2 and its source",
		Long: `Re-reads every file and compares it with the manifest, checks the invariants of all
quantized matrices, and with --model converts the float tensors of the source again and
compares them. Exit code 1 means that something is wrong with the model, or that it has no
digests to compare with; --structure does without them. With --key or --trust the manifest must be
signed by one of these keys, while it was valid.`,
		Example: "  kiln model verify my-model-exl2 --model llama-3-8b/\n  kiln model verify my-model-exl2 --trust trust.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err != nil {
				return err
			}
			keys, err := trust.read()
			if err != nil {
				return err
			}
			if keys != nil {
				if opts.Structure {
					return errors.New("--structure compares no digests, so a signature says nothing; leave one of them out")
				}
				opts.Signature = func(manifest []byte) (string, error) {
					return verifyManifest(cmp.Or(opts.ManifestPath, filepath.Join(args[0], exl2.ManifestName)), manifest, keys)
				}
			}
			progress := ui.NewProgress(a.stderr, a.err, filepath.Base(args[0]))
			opts.Progress = func(p exl2.Progress) { progress.Set(p.Done, p.Total) }
			opts.Links = *links
			report, err := exl2.Verify(cmd.Context(), args[0], opts)
			progress.Close()
			if err != nil {
				return err
			}
			if asJSON {
				if err := a.printJSON(report); err != nil {
					return err
				}
			}
			for _, p := range report.Problems {
				fmt.Fprintln(a.stderr, p)
			}
			if !report.OK() {
				return rowsFailedError{fmt.Errorf("%s: %s", args[0], units.Count(len(report.Problems), "problem"))}
			}
			if asJSON {
				return nil
			}
			for _, n := range report.Notices {
				fmt.Fprintln(a.stderr, "note:", n)
			}
			verdict, against := "good", "digests not compared"
			if opts.Structure {
				verdict = "good structure"
			} else {
				against = fmt.Sprintf("%s and %s as in the manifest", units.Count(report.Files, "file"), units.Count(report.Tensors, "tensor"))
				if report.Signer != "" {
					against += ", signed by " + report.Signer
				}
			}
			_, err = fmt.Fprintf(a.stdout, "%s: %s (%s; %s checked; %s compared with the source)\n",
				report.Dir, verdict, against, units.Count(report.Matrices, "quantized layer"), units.Count(report.Sources, "tensor"))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&opts.ModelDir, "model", "", "the source model `folder`, to compare float tensors with")
	cmd.Flags().StringVar(&opts.ManifestPath, "manifest", "", "the manifest `file` (default: the one in the folder)")
	trust.register(cmd)
	cmd.Flags().BoolVar(&opts.Structure, "structure", false, "check sizes and structure only: changed weights are not noticed")
	return cmd
}
