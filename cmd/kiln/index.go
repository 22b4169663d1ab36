package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/web"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/wheel"
)

func (a *app) indexCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Make and change a Python package index",
		Long: `Makes an index that pip, uv and other installers read from any web server: pages for
every toolkit and torch version, with hashes and metadata. Publishing adds to what is there;
a published file name means the same bytes for ever.`,
		Example: "  kiln index generate --wheels-dir dist --output-dir site --base-url https://example.org/wheels/",
	}
	cmd.AddCommand(a.indexGenerateCommand(), a.indexAddCommand(), a.indexRemoveCommand(), a.indexYankCommand(), a.indexListCommand(),
		a.indexCheckCommand(), a.indexSetCommand(), a.indexExportCommand())
	return cmd
}

// indexDir registers the flag of commands that work on an existing index.
func indexDir(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", ".", "the `folder` of the index")
	_ = cmd.MarkFlagDirname("dir")
}

// openIndex opens an index that must exist.
func (a *app) openIndex(dir string) (*index.Store, error) {
	store, err := index.Open(dir, index.StoreOptions{Log: a.log})
	if err != nil {
		return nil, err
	}
	if !store.Exists() {
		return nil, fmt.Errorf("%s has no index\n  make one with `kiln index generate` or `kiln index add`", dir)
	}
	return store, nil
}

// configFlags change the configuration of an index.
type configFlags struct {
	combination  string
	variants     bool
	oldAttribute bool
	aliases      bool
	web          string
}

func (f *configFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.combination, "default", "", "what /simple/ shows of projects with several `combinations`, such as cu128/torch2.9; \"none\" takes it back")
	flags.BoolVar(&f.variants, "experimental-variants", false, "accept wheel variants (PEP 825, a draft)")
	flags.BoolVar(&f.oldAttribute, "old-metadata-attribute", false, "announce metadata to pip 22.3 to 23.1 too")
	flags.BoolVar(&f.aliases, "aliases", true, "write views under their second names, such as cu128-torch2.9, too; an index that is there keeps what it has unless told")
	flags.StringVar(&f.web, "web", "auto", fmt.Sprintf("pages for people: on, off, or auto for indexes of up to %d files", web.AutoLimit))
	complete(cmd, "web", "auto", "on", "off")
}

// apply changes what flags were given for, and for a new index what has a default.
func (f *configFlags) apply(cmd *cobra.Command, config *index.Config, isNew bool) error {
	flags := cmd.Flags()
	if flags.Changed("default") {
		config.Default = index.Coordinates{}
		if f.combination != "none" {
			c, err := index.ParseCoordinates(f.combination)
			if err != nil {
				return fmt.Errorf("--default %w", err)
			}
			config.Default = c
		}
	}
	if flags.Changed("experimental-variants") {
		config.Variants = f.variants
	}
	if flags.Changed("old-metadata-attribute") {
		config.OldMetadataAttribute = f.oldAttribute
	}
	if flags.Changed("aliases") || isNew {
		config.Aliases = f.aliases
	}
	if flags.Changed("web") {
		switch f.web {
		case "auto":
			config.Web = ""
		case index.WebOn, index.WebOff:
			config.Web = f.web
		default:
			return fmt.Errorf("--web %q: use on, off or auto", f.web)
		}
	}
	return nil
}

// publishFlags are common to generate and add.
type publishFlags struct {
	strict     bool
	check      string
	uploadTime string
	noAudit    bool
	asJSON     bool
}

func (f *publishFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.strict, "strict", false, "publish nothing if there is a problem with any file")
	flags.StringVar(&f.check, "check", "full", "how to compare wheels with their RECORD: full (all bytes) or names")
	flags.StringVar(&f.uploadTime, "upload-time", "", "the `time` at which new files entered the index, such as 2026-08-01T12:00:00Z (default now)")
	flags.BoolVar(&f.noAudit, "no-audit", false, "do not look into wheels, to say for which GPUs they are and what else is in them")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	complete(cmd, "check", "full", "names")
}

func (a *app) publishOptions(f *publishFlags) (opts index.AddOptions, when time.Time, err error) {
	if f.check != "full" && f.check != "names" {
		return opts, when, fmt.Errorf("--check %q: use full or names", f.check)
	}
	if f.uploadTime != "" {
		if when, err = time.Parse(time.RFC3339, f.uploadTime); err != nil {
			return opts, when, fmt.Errorf("--upload-time: %w", err)
		}
	}
	opts = index.AddOptions{Strict: f.strict, NamesOnly: f.check == "names"}
	if !f.noAudit {
		opts.Audit = (&publish.Audits{Log: a.log}).Look
	}
	return opts, when, nil
}

// baseURL gives a URL of a folder its final slash.
func baseURL(s string) string {
	if s == "" || strings.HasSuffix(s, "/") {
		return s
	}
	return s + "/"
}

func (a *app) indexGenerateCommand() *cobra.Command {
	var flags publishFlags
	var config configFlags
	var wheelsDir, outputDir, base, manifest string
	var writeMetadata bool
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Add a folder of wheels to a static index",
		Long: `Reads every wheel and sdist in a folder and writes the pages for them, adding to the index
that the output folder has. Without --base-url the files are copied into the index; with it
they stay where they are and pages link to them there.

Pages announce the metadata of wheels at a base URL only if the folder has it beside the wheel,
as FILE.whl.metadata; --write-metadata writes these files, to be uploaded with the wheels.

A folder named simple means the index above it: --output-dir index/simple makes the index in
index, whose pages are in index/simple.

A manifest lists files that are not at hand: one JSON object a line, as PEP 691 describes files.`,
		Example: `  kiln index generate --wheels-dir dist --output-dir site --base-url https://example.org/wheels/
  kiln index generate --wheels-dir dist --output-dir site --default cu128/torch2.9
  kiln index generate --manifest files.jsonl --output-dir site`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, when, err := a.publishOptions(&flags)
			if err != nil {
				return err
			}
			if wheelsDir == "" && manifest == "" {
				return errors.New("nothing to read: give --wheels-dir or --manifest")
			}
			store, simple, err := a.openOutput(outputDir)
			if err != nil {
				return err
			}
			next, err := store.Config()
			if err != nil {
				return err
			}
			if err := config.apply(cmd, &next, !store.Exists()); err != nil {
				return err
			}
			opts.Config = &next
			var changes []index.Change
			var problems []index.Problem
			if wheelsDir != "" {
				changes, problems, err = store.AddDir(cmd.Context(), wheelsDir, index.ScanOptions{
					AddOptions: opts, Base: baseURL(base), WriteMetadata: writeMetadata, UploadTime: when,
				})
				if err != nil {
					return err
				}
			}
			if manifest != "" {
				more, bad, err := a.publishManifest(cmd.Context(), store, manifest, baseURL(base), when, opts)
				if err != nil {
					return err
				}
				changes, problems = append(changes, more...), append(problems, bad...)
			}
			if err := a.finish(cmd.Context(), store, changes, problems, flags.asJSON); err != nil || !simple || flags.asJSON {
				return err
			}
			fmt.Fprintf(a.stdout, "the index is the folder %s, and its pages are in %s: pip needs --index-url SITE/simple/\n",
				filepath.ToSlash(filepath.Dir(filepath.Clean(outputDir))), filepath.ToSlash(filepath.Clean(outputDir)))
			return nil
		},
	}
	flags.register(cmd)
	config.register(cmd)
	cmd.Flags().StringVar(&wheelsDir, "wheels-dir", "", "the `folder` with the wheels and sdists")
	cmd.Flags().StringVar(&outputDir, "output-dir", "", "the `folder` of the index (required)")
	cmd.Flags().StringVar(&base, "base-url", "", "the `URL` at which users find the files of the folder (default: copy them into the index)")
	cmd.Flags().StringVar(&manifest, "manifest", "", "a `file` that lists files elsewhere; - means standard input")
	cmd.Flags().BoolVar(&writeMetadata, "write-metadata", false, "write FILE.whl.metadata beside each wheel")
	_ = cmd.MarkFlagRequired("output-dir")
	_ = cmd.MarkFlagDirname("wheels-dir")
	_ = cmd.MarkFlagDirname("output-dir")
	return cmd
}

// openOutput opens the index that --output-dir means. Other generators write the pages of projects
// into that folder itself and are called with index/simple; kiln's index is the folder above
// then, which has those pages at the same place.
func (a *app) openOutput(dir string) (store *index.Store, simple bool, err error) {
	store, err = index.Open(dir, index.StoreOptions{Log: a.log})
	if err != nil || store.Exists() || filepath.Base(filepath.Clean(dir)) != "simple" {
		return store, false, err
	}
	store, err = index.Open(filepath.Dir(filepath.Clean(dir)), index.StoreOptions{Log: a.log})
	return store, true, err
}

func (a *app) publishManifest(ctx context.Context, store *index.Store, name, base string, when time.Time, opts index.AddOptions) ([]index.Change, []index.Problem, error) {
	in := a.stdin
	if name != "-" {
		f, err := fsx.Open(name)
		if err != nil {
			return nil, nil, fmt.Errorf("--manifest: %w", err)
		}
		defer f.Close()
		in = f
	}
	files := index.ReadManifest(in)
	return store.AddListed(ctx, func(yield func(index.File, error) bool) {
		for f, err := range files {
			if f.Base == "" {
				f.Base = base
			}
			if f.UploadTime.IsZero() {
				f.UploadTime = when
			}
			if !yield(f, err) {
				return
			}
		}
	}, opts)
}

// finish writes the pages for people and says what happened.
func (a *app) finish(ctx context.Context, store *index.Store, changes []index.Change, problems []index.Problem, asJSON bool) error {
	if store.Exists() {
		if err := a.writeWeb(ctx, store, false); err != nil {
			return err
		}
	}
	return a.printChanges(store, changes, problems, asJSON)
}

// writeWeb writes the pages for people.
func (a *app) writeWeb(ctx context.Context, store *index.Store, all bool) error {
	foreign, err := web.Write(ctx, store, all)
	for _, page := range foreign {
		a.log.Warn("page left alone, it is not kiln's", "page", page)
	}
	return err
}

// printChanges says what happened to files. Problems make the exit code 1.
func (a *app) printChanges(store *index.Store, changes []index.Change, problems []index.Problem, asJSON bool) error {
	counts := map[string]int{}
	for _, c := range changes {
		counts[c.Action]++
	}
	if asJSON {
		type problem struct {
			Filename string `json:"filename"`
			Error    string `json:"error"`
		}
		out := struct {
			Format   string         `json:"format"`
			Index    string         `json:"index"`
			Changes  []index.Change `json:"changes"`
			Problems []problem      `json:"problems"`
		}{"kiln-index-changes/1", store.Dir(), changes, []problem{}}
		if out.Changes == nil {
			out.Changes = []index.Change{}
		}
		for _, p := range problems {
			out.Problems = append(out.Problems, problem{p.Filename, p.Err.Error()})
		}
		if err := a.printJSON(out); err != nil {
			return err
		}
	} else {
		var parts []string
		for _, action := range []string{"added", "moved", "removed", "yanked", "unyanked", "unchanged"} {
			if counts[action] > 0 {
				parts = append(parts, units.Count(counts[action], "file")+" "+action)
			}
		}
		if len(parts) == 0 {
			parts = []string{"nothing changed"}
		}
		fmt.Fprintln(a.stdout, strings.Join(parts, ", "))
	}
	for _, p := range problems {
		fmt.Fprintln(a.stderr, p)
	}
	if len(problems) > 0 {
		return rowsFailedError{fmt.Errorf("%s not published", units.Count(len(problems), "file"))}
	}
	return nil
}

func (a *app) indexAddCommand() *cobra.Command {
	var flags publishFlags
	var dir, base, built, provenance string
	var arch []string
	var metadataBeside bool
	cmd := &cobra.Command{
		Use:   "add FILE…",
		Short: "Add wheels and sdists to an index",
		Long: `Checks and hashes the files and changes the pages concerned. A file that the index has with
the same bytes is left alone; other bytes under a published name are refused.`,
		Example: `  kiln index add --dir site dist/flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl
  kiln index add --dir site --base-url https://github.com/o/r/releases/download/v1/ dist/*.whl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, when, err := a.publishOptions(&flags)
			if err != nil {
				return err
			}
			var at index.Coordinates
			if built != "" {
				if at, err = index.ParseCoordinates(built); err != nil {
					return fmt.Errorf("--built %w", err)
				}
			}
			store, err := index.Open(dir, index.StoreOptions{Log: a.log})
			if err != nil {
				return err
			}
			if !store.Exists() {
				config, err := store.Config()
				if err != nil {
					return err
				}
				config.Aliases = true // as generate does
				opts.Config = &config
			}
			files := make([]index.NewFile, len(args))
			for i, arg := range args {
				files[i] = index.NewFile{
					Path: arg, Base: baseURL(base), MetadataBeside: metadataBeside, UploadTime: when,
					Coordinates: at, Arch: arch, Provenance: provenance,
				}
			}
			// It does not take long enough for collecting garbage to be worth the time.
			debug.SetGCPercent(400)
			changes, problems, err := store.Add(cmd.Context(), files, opts)
			if err != nil {
				return err
			}
			return a.finish(cmd.Context(), store, changes, problems, flags.asJSON)
		},
	}
	flags.register(cmd)
	indexDir(cmd, &dir)
	cmd.Flags().StringVar(&base, "base-url", "", "the `URL` of the folder where users find the files (default: copy them into the index)")
	cmd.Flags().BoolVar(&metadataBeside, "metadata-beside", false, "FILE.whl.metadata is at the base URL too")
	cmd.Flags().StringVar(&built, "built", "", "what the files were built for, such as cu128/torch2.9, if their version does not say it")
	cmd.Flags().StringSliceVar(&arch, "arch", nil, "the GPU architectures in the files, such as 80,90")
	cmd.Flags().StringVar(&provenance, "provenance", "", "the https `URL` of the provenance object (PEP 740)")
	return cmd
}

func (a *app) indexRemoveCommand() *cobra.Command {
	var dir, glob string
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "remove FILE|PROJECT==VERSION…",
		Short: "Remove files from an index for ever",
		Long: `Takes files off all pages and deletes those that the index hosts. Their names cannot be
used again, because installers remember hashes. To keep new users away from a file that
others depend on, yank it instead.`,
		Example: "  kiln index remove --dir site 'flash-attn==2.8.3+cu128.torch2.9'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := a.openIndex(dir)
			if err != nil {
				return err
			}
			var selections []index.Selection
			for _, arg := range args {
				s, err := index.ParseSelection(arg, glob)
				if err != nil {
					return err
				}
				if s.Whole && !all {
					return fmt.Errorf("%s has no version: say --all to remove every file of the project", arg)
				}
				selections = append(selections, s)
			}
			var changes []index.Change
			for _, s := range selections {
				done, err := store.Remove(cmd.Context(), s.Project, s.Match)
				if err != nil {
					return err
				}
				changes = append(changes, done...)
			}
			return a.finish(cmd.Context(), store, changes, nil, asJSON)
		},
	}
	indexDir(cmd, &dir)
	cmd.Flags().StringVar(&glob, "file", "", "only files whose names match this `pattern`")
	cmd.Flags().BoolVar(&all, "all", false, "remove all files of a project that is named without a version")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) indexYankCommand() *cobra.Command {
	var dir, glob, reason string
	var asJSON, undo bool
	cmd := &cobra.Command{
		Use:   "yank FILE|PROJECT==VERSION…",
		Short: "Keep new installs away from files, without breaking old ones",
		Long: `Marks files as yanked (PEP 592): installers take them only for an exact version or from a
lock file. The files stay where they are.`,
		Example: `  kiln index yank --dir site flash-attn==2.8.2 --reason "crashes on sm_120"
  kiln index yank --dir site flash-attn==2.8.2 --undo`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := a.openIndex(dir)
			if err != nil {
				return err
			}
			var changes []index.Change
			for _, arg := range args {
				s, err := index.ParseSelection(arg, glob)
				if err != nil {
					return err
				}
				done, err := store.Yank(cmd.Context(), s.Project, s.Match, reason, undo)
				if err != nil {
					return err
				}
				changes = append(changes, done...)
			}
			return a.finish(cmd.Context(), store, changes, nil, asJSON)
		},
	}
	indexDir(cmd, &dir)
	cmd.Flags().StringVar(&glob, "file", "", "only files whose names match this `pattern`")
	cmd.Flags().StringVar(&reason, "reason", "", "what to tell users")
	cmd.Flags().BoolVar(&undo, "undo", false, "take the mark back")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("reason", "undo")
	return cmd
}

// listedFile is a file in the JSON of "index list".
type listedFile struct {
	Project        string            `json:"project"`
	Filename       string            `json:"filename"`
	Version        string            `json:"version"`
	URL            string            `json:"url"`
	SHA256         index.Digest      `json:"sha256"`
	Size           int64             `json:"size"`
	Hosted         bool              `json:"hosted"`
	Metadata       index.Digest      `json:"metadata,omitzero"`
	RequiresPython string            `json:"requires_python,omitempty"`
	UploadTime     time.Time         `json:"upload_time,omitzero"`
	Yanked         bool              `json:"yanked,omitempty"`
	YankedReason   string            `json:"yanked_reason,omitempty"`
	Built          index.Coordinates `json:"built,omitzero"`
	Arch           []string          `json:"arch,omitempty"`
	Glibc          string            `json:"glibc,omitempty"`
	Window         []string          `json:"window,omitempty"`
}

func (a *app) indexListCommand() *cobra.Command {
	var dir, view string
	var asJSON, views bool
	cmd := &cobra.Command{
		Use:   "list [PROJECT|PROJECT==VERSION]…",
		Short: "List the files of an index, or its views",
		Example: `  kiln index list --dir site --view cu128/torch2.9
  kiln index list --dir site --views
  kiln index list --dir site --json | jq -r '.files[].filename'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := a.openIndex(dir)
			if err != nil {
				return err
			}
			catalog, err := store.Catalog(cmd.Context())
			if err != nil {
				return err
			}
			if views {
				return a.listViews(catalog, asJSON)
			}
			v := catalog.View(viewPath(view))
			if v == nil {
				return fmt.Errorf("no view %q; `kiln index list --views` shows those there are", view)
			}
			var selections []index.Selection
			for _, arg := range args {
				s, err := index.ParseSelection(arg, "")
				if err != nil {
					return err
				}
				selections = append(selections, s)
			}
			files := []listedFile{}
			for p := range v.Projects() {
				shown, _ := v.Files(p.Name)
				for _, f := range shown {
					if !selected(selections, p.Name, f) {
						continue
					}
					files = append(files, listedFile{
						Project: p.Name, Filename: f.Filename, Version: f.Version().String(), URL: f.URL(""), SHA256: f.SHA256, Size: f.Size,
						Hosted: f.Base == "", Metadata: f.Metadata, RequiresPython: f.RequiresPython, UploadTime: f.UploadTime,
						Yanked: f.Yanked, YankedReason: f.YankedReason, Built: f.Built(), Arch: f.Arch, Glibc: f.Glibc, Window: f.Window,
					})
				}
			}
			if asJSON {
				return a.printJSON(map[string]any{"format": "kiln-index-list/1", "view": v.Path, "files": files})
			}
			table := ui.NewTable("PROJECT", "FILE", ">SIZE", "BUILT FOR", "UPLOADED", "")
			for _, f := range files {
				mark := ""
				if f.Yanked {
					mark = strings.TrimSpace("yanked " + f.YankedReason)
				}
				uploaded := ""
				if !f.UploadTime.IsZero() {
					uploaded = f.UploadTime.Format(time.DateOnly)
				}
				table.Add(f.Project, f.Filename, units.Bytes(f.Size), f.Built.String(), uploaded, mark)
			}
			return table.Write(a.stdout, a.out)
		},
	}
	indexDir(cmd, &dir)
	cmd.Flags().StringVar(&view, "view", "all", "only what this `view` shows: default, all, cu128, cu128/torch2.9, …")
	cmd.Flags().BoolVar(&views, "views", false, "list the views instead of files")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func selected(selections []index.Selection, project string, f *index.File) bool {
	for _, s := range selections {
		if s.Project == project && s.Match(f) {
			return true
		}
	}
	return len(selections) == 0
}

// defaultViewName is what the view at /simple/ is called, whose path is empty.
const defaultViewName = "default"

// viewPath returns the path of a view by its name, its path or its address, as --views shows them.
func viewPath(name string) string {
	name = strings.Trim(name, "/")
	if name == "simple" || name == defaultViewName {
		return ""
	}
	return strings.TrimSuffix(name, "/simple")
}

func (a *app) listViews(catalog *index.Catalog, asJSON bool) error {
	type line struct {
		Path     string   `json:"path"`
		Aliases  []string `json:"aliases,omitempty"`
		Projects int      `json:"projects"`
		Files    int      `json:"files"`
	}
	lines := []line{}
	for _, v := range catalog.Views() {
		l := line{Path: v.Path, Aliases: v.Aliases}
		for p := range v.Projects() {
			files, _ := v.Files(p.Name)
			l.Projects++
			l.Files += len(files)
		}
		lines = append(lines, l)
	}
	if asJSON {
		return a.printJSON(map[string]any{"format": "kiln-index-views/1", "views": lines})
	}
	table := ui.NewTable("VIEW", "URL", ">PROJECTS", ">FILES", "ALSO AT")
	for _, l := range lines {
		table.Add(cmp.Or(l.Path, defaultViewName), path.Join("/", l.Path, "simple")+"/", units.Number(l.Projects), units.Number(l.Files), strings.Join(l.Aliases, " "))
	}
	return table.Write(a.stdout, a.out)
}

func (a *app) indexCheckCommand() *cobra.Command {
	var dir string
	var asJSON bool
	var opts index.CheckOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare an index with its files and pages",
		Long: `Completes a change that was interrupted, then compares every hosted file with its hash, every
page with the catalog, and with --wheels-dir a folder of wheels with the index. --repair writes
pages anew and removes what belongs to nothing. Exit code 1 means that something is wrong.`,
		Example: "  kiln index check --dir site --wheels-dir dist",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := a.openIndex(dir)
			if err != nil {
				return err
			}
			report, err := store.Check(cmd.Context(), opts)
			if err != nil {
				return err
			}
			if opts.Repair {
				if err := a.writeWeb(cmd.Context(), store, true); err != nil {
					return err
				}
			}
			if asJSON {
				if report.Findings == nil {
					report.Findings = []index.Finding{}
				}
				if err := a.printJSON(report); err != nil {
					return err
				}
			}
			bad := 0
			for _, f := range report.Findings {
				fmt.Fprintln(a.stderr, f)
				if !f.Warning && !f.Repaired {
					bad++
				}
			}
			if bad > 0 {
				return rowsFailedError{fmt.Errorf("%s: %s", dir, units.Count(bad, "problem"))}
			}
			if asJSON {
				return nil
			}
			_, err = fmt.Fprintf(a.stdout, "good: %s in %s, %s hosted, %s\n", units.Count(report.Files, "file"),
				units.Count(report.Projects, "project"), units.Number(report.Hosted), units.Count(report.Pages, "page"))
			return err
		},
	}
	indexDir(cmd, &dir)
	cmd.Flags().BoolVar(&opts.Repair, "repair", false, "write wrong pages anew and remove what belongs to nothing")
	cmd.Flags().BoolVar(&opts.NoHash, "no-hash", false, "compare only the sizes of hosted files")
	cmd.Flags().StringVar(&opts.WheelsDir, "wheels-dir", "", "a `folder` of wheels that should all be in the index")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagDirname("wheels-dir")
	return cmd
}

func (a *app) indexSetCommand() *cobra.Command {
	var config configFlags
	var dir, base, status, reason, display string
	var shared bool
	cmd := &cobra.Command{
		Use:   "set [PROJECT]",
		Short: "Change settings of an index or of one of its projects",
		Long: `Without a project, changes the configuration of the index. With one: its status (PEP 792), its
default combination, and whether its wheels for no toolkit in particular are in every view.
A project that the index does not have is made without files, which reserves the name.`,
		Example: `  kiln index set --dir site --default cu128/torch2.9
  kiln index set --dir site flash-attn --status archived --reason "moved to flash-attn-4"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := cmd.Flags()
			store, err := index.Open(dir, index.StoreOptions{Log: a.log})
			if err != nil {
				return err
			}
			if len(args) == 0 {
				for _, name := range []string{"status", "reason", "shared", "display-name"} {
					if flags.Changed(name) {
						return fmt.Errorf("--%s needs a project", name)
					}
				}
				next, err := store.Config()
				if err != nil {
					return err
				}
				if err := config.apply(cmd, &next, false); err != nil {
					return err
				}
				if flags.Changed("base-url") {
					next.BaseURL = baseURL(base)
				}
				if err := store.SetConfig(cmd.Context(), next); err != nil {
					return err
				}
				return a.writeWeb(cmd.Context(), store, false)
			}
			for _, name := range []string{"base-url", "aliases", "old-metadata-attribute", "experimental-variants", "web"} {
				if flags.Changed(name) {
					return fmt.Errorf("--%s is for the index as a whole; leave out the project", name)
				}
			}
			var s index.Settings
			if flags.Changed("status") {
				s.Status = new(index.Status(status))
			}
			if flags.Changed("reason") {
				s.StatusReason = &reason
			}
			if flags.Changed("shared") {
				s.Shared = &shared
			}
			if flags.Changed("display-name") {
				s.DisplayName = &display
			}
			if flags.Changed("default") {
				var c index.Config
				if err := config.apply(cmd, &c, false); err != nil {
					return err
				}
				s.Default = &c.Default
			}
			if err := store.SetProject(cmd.Context(), wheel.NormalizeName(args[0]), s); err != nil {
				return err
			}
			return a.writeWeb(cmd.Context(), store, false)
		},
	}
	indexDir(cmd, &dir)
	config.register(cmd)
	cmd.Flags().StringVar(&base, "base-url", "", "the `URL` of files that are added without one")
	cmd.Flags().StringVar(&status, "status", "", "active, deprecated, archived (no new files) or quarantined (no files at all)")
	cmd.Flags().StringVar(&reason, "reason", "", "why it has that status")
	cmd.Flags().BoolVar(&shared, "shared", false, "put its wheels for no toolkit in particular into every view")
	cmd.Flags().StringVar(&display, "display-name", "", "the spelling of the project name to show")
	complete(cmd, "status", string(index.Active), string(index.Deprecated), string(index.Archived), string(index.Quarantined))
	return cmd
}
