package publish

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

// NotesOptions are what notes of a release can use besides the files.
type NotesOptions struct {
	// IndexURL is the root of the index that lists the files, for install lines.
	IndexURL string
	// Base is the URL of the files of a release, used without an index.
	Base func(tag string) string
}

// maxNotes is how long notes may be; GitHub takes 125,000 characters.
const maxNotes = 120_000

// Notes writes what there is to say about a release, in Markdown, from the facts alone: equal
// releases have equal notes.
func Notes(r *Release, inv *Inventory, p PlannedRelease, opts NotesOptions) string {
	text := notes(r, inv, p, opts, true)
	if len(text) > maxNotes {
		text = notes(r, inv, p, opts, false)
	}
	if len(text) > maxNotes {
		text = strings.ToValidUTF8(text[:maxNotes], "") + "\n\n(The rest did not fit.)\n"
	}
	return text
}

func notes(r *Release, inv *Inventory, p PlannedRelease, opts NotesOptions, full bool) string {
	var b strings.Builder
	units := map[string]*Unit{}
	for i := range inv.Units {
		units[inv.Units[i].File.Name] = &inv.Units[i]
	}
	var files []*RemoteFile
	for i := range r.Files {
		if isDistribution(r.Files[i].Name) {
			files = append(files, &r.Files[i])
		}
	}
	for _, u := range inv.Units {
		if d := u.Record.Recipe.Settings.Description; d != "" && u.Row.Package == p.pkg {
			fmt.Fprintf(&b, "%s\n\n", d)
			break
		}
	}
	states := map[string]int{}
	for _, row := range inv.Rows {
		if p.owns(row.ID) {
			states[row.State]++
		}
	}
	fmt.Fprintf(&b, "%s. Of this version's rows: ", plural(len(files), "file"))
	var parts []string
	for _, s := range []string{RowReady, RowFailed, RowMissing, RowStale, RowUntested, RowRejected, RowSkipped} {
		if n := states[s]; n > 0 {
			word := s
			if s == RowReady {
				word = "built, tested and audited"
			}
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	b.WriteString(cmp.Or(strings.Join(parts, ", "), "none") + ".\n")
	if n := len(slices.DeleteFunc(slices.Clone(inv.Rows), func(s RowState) bool {
		return s.State == RowReady || s.State == RowSkipped || !p.owns(s.ID)
	})); n > 0 {
		fmt.Fprintf(&b, "\n**This release is not complete: %s missing.**\n", plural(n, "row is", "rows are"))
	}

	installLines(&b, r, files, p, opts)

	if full && len(files) > 0 {
		b.WriteString("\n## Files\n\n| file | Python | toolkit | torch | GPU code | SHA-256 |\n| --- | --- | --- | --- | --- | --- |\n")
		for _, f := range files {
			python, toolkit, torch, archs := describe(f.Name, units[f.Name])
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | `%s` |\n", f.Name, python, toolkit, torch, archs, f.SHA256)
		}
	}
	section := func(title string, states ...string) {
		first := true
		for _, row := range inv.Rows {
			if !slices.Contains(states, row.State) || !p.owns(row.ID) {
				continue
			}
			if first {
				fmt.Fprintf(&b, "\n## %s\n\n| row | why |\n| --- | --- |\n", title)
				first = false
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", row.ID, cell(row.State+": "+row.Reason))
		}
	}
	section("Missing", RowFailed, RowMissing, RowStale, RowUntested, RowRejected)
	if full {
		section("Left out", RowSkipped)
	}
	warnings := map[string][]string{}
	for _, f := range files {
		if u := units[f.Name]; u != nil {
			for _, w := range u.Warnings {
				warnings[w] = append(warnings[w], f.Name)
			}
		}
	}
	if len(warnings) > 0 {
		b.WriteString("\n## Warnings\n\n")
		for _, w := range slices.Sorted(maps.Keys(warnings)) {
			fmt.Fprintf(&b, "- %s (%s)\n", cell(w), plural(len(warnings[w]), "file"))
		}
	}
	if len(r.Changes) > 0 {
		b.WriteString("\n## Changes after publication\n\n| when | file | what | by |\n| --- | --- | --- | --- |\n")
		for _, c := range r.Changes {
			what := c.Action
			if c.New != "" {
				what += fmt.Sprintf(": `%.12s` → `%.12s`", cmp.Or(c.Old, "unknown"), c.New)
			}
			if c.Reason != "" {
				what += ", " + c.Reason
			}
			fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", c.Time.Format("2006-01-02 15:04"), c.Name, cell(what), cell(c.By))
		}
	}
	return b.String()
}

// owns reports whether a row is of the package and version of a release. Ids begin with both.
func (p *PlannedRelease) owns(id string) bool { return strings.HasPrefix(id, p.pkg+"-"+p.version+"-") }

// describe says what a file is for.
func describe(name string, u *Unit) (python, toolkit, torch, archs string) {
	w, err := wheel.ParseFilename(name)
	if err != nil {
		return "source", "", "", ""
	}
	built := index.ParseLabel(w.Version.Local())
	toolkit, torch = index.ToolkitName(built.Toolkit), strings.Join(built.Torch, ", ")
	if built.Toolkit == "" {
		toolkit = ""
	}
	if len(w.Python) > 0 {
		python = index.PythonName(w.Python[0])
	}
	if u != nil {
		torch = cmp.Or(u.Row.Torch, torch)
		python = cmp.Or(u.Row.Python, python)
		if kind, version := u.Row.Toolkit(); version != "" {
			toolkit = map[string]string{"cuda": "CUDA ", "rocm": "ROCm "}[kind] + version
		}
		archs = u.Archs
	}
	return python, toolkit, torch, archs
}

// installLines writes one line for every variant.
func installLines(b *strings.Builder, r *Release, files []*RemoteFile, p PlannedRelease, opts NotesOptions) {
	variants := map[string]*RemoteFile{}
	var order []string
	for _, f := range files {
		w, err := wheel.ParseFilename(f.Name)
		if err != nil {
			continue
		}
		key := w.Version.String()
		if variants[key] == nil {
			variants[key] = f
			order = append(order, key)
		}
	}
	if len(order) == 0 || opts.IndexURL == "" && opts.Base == nil {
		return
	}
	var lines []string
	for _, version := range order {
		w, err := wheel.ParseFilename(variants[version].Name)
		if err != nil {
			continue
		}
		built := index.ParseLabel(w.Version.Local())
		if opts.IndexURL != "" {
			view := built.String()
			if view != "" {
				view += "/"
			}
			lines = append(lines, fmt.Sprintf("pip install %s==%s --only-binary %s --extra-index-url %s%ssimple/", p.pkg, version, p.pkg, slash(opts.IndexURL), view))
		} else if base := opts.Base(r.Tag); base != "" {
			lines = append(lines, "pip install "+base+url.PathEscape(variants[version].Name))
		}
	}
	if len(lines) > 0 {
		b.WriteString("\n## Install\n\n```sh\n" + strings.Join(lines, "\n") + "\n```\n")
	}
}

func slash(s string) string {
	if strings.HasSuffix(s, "/") {
		return s
	}
	return s + "/"
}

// cell makes a text fit into a table.
func cell(s string) string {
	return strings.NewReplacer("\r", "", "\n", " ", "|", "\\|", "<", "&lt;").Replace(s)
}

func plural(n int, nouns ...string) string {
	many := nouns[0] + "s"
	if len(nouns) > 1 {
		many = nouns[1]
	}
	if n == 1 {
		return "1 " + nouns[0]
	}
	return fmt.Sprintf("%d %s", n, many)
}
