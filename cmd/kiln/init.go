package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix/scaffold"
)

func (a *app) initCommand() *cobra.Command {
	var opts scaffold.Options
	var asJSON, force, toStdout bool
	cmd := &cobra.Command{
		Use:   "init [FOLDER]",
		Short: "Write the first packages.yml of a project",
		Long: `Reads a checkout (pyproject.toml, setup.py, setup.cfg, CMakeLists.txt, its git remote and
tags) and writes a packages.yml with its first rows. Nothing of the checkout is run: setup.py
is read as text. It says what was found where, what was guessed, and what to run next.

--from-workflow takes the matrix of a GitHub workflow instead: lists, include, exclude, and
texts or maps that hold several values. The file that is written has exactly the rows of the
workflow; if none does, nothing is written and the rows that differ are shown. A matrix that
a job computes can be given as a JSON file.`,
		Example: `  kiln init
  kiln init ../flash-attention --stdout
  kiln init --from-workflow .github/workflows/wheels.yml
  kiln init --from-workflow wheels.yml --job build_wheels --name demo --version 1.2.3`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			opts.Dir = "."
			if len(args) > 0 {
				opts.Dir = args[0]
			} else if dir := filepath.Dir(opts.Workflow); strings.HasSuffix(filepath.ToSlash(dir), "/.github/workflows") {
				opts.Dir = filepath.Dir(filepath.Dir(dir)) // the checkout that the workflow is part of
			}
			if info, err := os.Stat(opts.Dir); err != nil || !info.IsDir() {
				return fmt.Errorf("%s is not a folder\n  name the root of a checkout", opts.Dir)
			}
			if opts.Output == "" {
				opts.Output = filepath.Join(opts.Dir, defaultFile)
			}
			if _, err := os.Lstat(opts.Output); err == nil && !force && !toStdout {
				return fmt.Errorf("%s exists\n  --force replaces it, --stdout only shows what would be written", opts.Output)
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			r, err := scaffold.New(opts)
			if bad, ok := errors.AsType[*diag.ListError](err); ok {
				a.printDiagnostics(bad.Diagnostics, r.Sources)
				return err
			}
			if err != nil {
				return err
			}
			if !toStdout {
				if err := fsx.WriteFile(opts.Output, r.Text, 0o644); err != nil {
					return err
				}
			}
			switch {
			case asJSON:
				return a.printJSON(initJSON(r, opts.Output, !toStdout))
			case toStdout:
				if _, err := a.stdout.Write(r.Text); err != nil {
					return err
				}
				a.printInit(r, opts, toStdout)
			default:
				a.printInit(r, opts, toStdout)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Workflow, "from-workflow", "", "take the matrix of this GitHub workflow `file`")
	flags.StringSliceVar(&opts.Jobs, "job", nil, "the `jobs` of the workflow to take (default the one that builds wheels)")
	flags.StringVar(&opts.Name, "name", "", "the `name` of the package, if it is not found or is another one")
	flags.StringVar(&opts.Version, "version", "", "the `version` of the package, if it is not found or is another one")
	flags.StringVar(&opts.Source, "source", "", "where builds get the code: git (the remote, at a tag) or path (this folder)")
	flags.StringVarP(&opts.Output, "output", "o", "", "the `file` to write (default packages.yml in the folder)")
	flags.BoolVar(&toStdout, "stdout", false, "write no file; print it")
	flags.BoolVar(&force, "force", false, "replace an existing file")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("stdout", "force")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if opts.Source != "" && opts.Source != "git" && opts.Source != "path" {
			return fmt.Errorf("--source %q: use git or path", opts.Source)
		}
		if len(opts.Jobs) > 0 && opts.Workflow == "" {
			return errors.New("--job is for --from-workflow")
		}
		return nil
	}
	_ = cmd.MarkFlagFilename("from-workflow", "yml", "yaml", "json")
	_ = cmd.MarkFlagFilename("output", "yml", "yaml")
	complete(cmd, "source", "git", "path")
	return cmd
}

// initNext are the commands to run after init.
func initNext(r *scaffold.Result, output string) []string {
	file := ""
	if filepath.Clean(output) != defaultFile {
		file = " -f " + output
	}
	next := []string{"kiln plan" + file}
	if r.Plan.Err() != nil {
		return append(next, "kiln plan"+file+" --skip-incompatible")
	}
	for i := range r.Plan.Rows {
		if row := &r.Plan.Rows[i]; strings.HasSuffix(row.Platform, "x86_64") || row.Platform == "any" {
			return append(next, "kiln build"+file+" "+row.ID)
		}
	}
	return next
}

// printInit says what was found, what was guessed, and what to run next.
func (a *app) printInit(r *scaffold.Result, opts scaffold.Options, toStdout bool) {
	w := &bytes.Buffer{}
	section := func(title string, notes []scaffold.Note) {
		if len(notes) == 0 {
			return
		}
		fmt.Fprintln(w, title)
		for _, n := range notes {
			switch {
			case n.Pos.File == "":
				fmt.Fprintf(w, "  %s\n", n.Text)
			case n.Pos.Line == 0:
				fmt.Fprintf(w, "  %s: %s\n", n.Pos.File, n.Text)
			default:
				fmt.Fprintf(w, "  %s:%d: %s\n", n.Pos.File, n.Pos.Line, n.Text)
			}
		}
	}
	section("Found:", r.Found)
	section("Guessed:", r.Guessed)
	section("A pipeline that kiln init --from-workflow can take:", r.Workflows)
	lines := units.Count(bytes.Count(r.Text, []byte("\n")), "line")
	rows := units.Count(len(r.Plan.Rows), "row")
	if opts.Workflow != "" {
		rows = fmt.Sprintf("%s, the same as the workflow's", rows)
	}
	if toStdout {
		fmt.Fprintf(w, "%s for %s %s: %s\n", lines, r.Package, r.Version, rows)
	} else {
		fmt.Fprintf(w, "Wrote %s: %s for %s %s, %s\n", opts.Output, lines, r.Package, r.Version, rows)
	}
	if n := r.Plan.Findings.Count(diag.Error); n > 0 {
		fmt.Fprintf(w, "The plan has %s: some rows cannot work, as far as kiln knows\n", units.Count(n, "error"))
		for _, d := range r.Plan.Findings {
			if d.Severity == diag.Error {
				fmt.Fprintf(w, "  %s\n", d)
			}
		}
	}
	fmt.Fprintln(w, "Next:")
	for _, command := range initNext(r, opts.Output) {
		fmt.Fprintf(w, "  %s\n", command)
	}
	out := a.stdout
	if toStdout { // that is for the file alone
		out = a.stderr
	}
	_, _ = out.Write(w.Bytes())
}

// initJSON is the machine form of what init did.
func initJSON(r *scaffold.Result, output string, written bool) any {
	notes := func(list []scaffold.Note) []scaffold.Note {
		if list == nil {
			return []scaffold.Note{}
		}
		return list
	}
	findings := r.Plan.Findings
	if findings == nil {
		findings = diag.List{}
	}
	return struct {
		Format    string          `json:"format"`
		File      string          `json:"file"`
		Written   bool            `json:"written"`
		Package   string          `json:"package"`
		Version   string          `json:"version"`
		Rows      int             `json:"rows"`
		Jobs      int             `json:"jobs"`
		Text      string          `json:"text"`
		Found     []scaffold.Note `json:"found"`
		Guessed   []scaffold.Note `json:"guessed"`
		Workflows []scaffold.Note `json:"workflows"`
		Findings  diag.List       `json:"findings"`
		Next      []string        `json:"next"`
	}{
		"kiln-init/1", output, written, r.Package, r.Version, len(r.Plan.Rows), r.Jobs, string(r.Text),
		notes(r.Found), notes(r.Guessed), notes(r.Workflows), findings, initNext(r, output),
	}
}
