package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestReference keeps docs/commands.md what the commands say.
func TestReference(t *testing.T) {
	var page bytes.Buffer
	writeReference(&page, describe((&app{}).command()))
	kilntest.Golden(t, filepath.Join("..", "..", "docs", "commands.md"), page.Bytes())
}

// writeReference writes docs/commands.md.
func writeReference(w io.Writer, root commandInfo) {
	fmt.Fprint(w, "# Commands\n\nWritten by `go test ./cmd/kiln -run TestReference -update` from the commands themselves; `kiln help\nCOMMAND` prints the same. "+
		"The man pages of a release are made from it too.\n")
	var walk func(c commandInfo)
	walk = func(c commandInfo) {
		fmt.Fprintf(w, "\n## %s\n\n%s.\n", c.Name, c.Short)
		if c.Long != "" {
			fmt.Fprintf(w, "\n%s\n", wrap(c.Long, 100))
		}
		fmt.Fprintf(w, "\n```\n%s\n```\n", c.Use)
		if c.Example != "" {
			fmt.Fprintf(w, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
		if len(c.Flags) > 0 {
			fmt.Fprint(w, "\n| flag | |\n| --- | --- |\n")
		}
		for _, f := range c.Flags {
			name := "`--" + strings.TrimSpace(f.Name+" "+f.Value) + "`"
			if f.Shorthand != "" {
				name = "`-" + f.Shorthand + "`, " + name
			}
			usage := f.Usage
			if f.Default != "" && !strings.Contains(usage, "(default") {
				usage += " (default " + f.Default + ")"
			}
			fmt.Fprintf(w, "| %s | %s |\n", name, strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`).Replace(usage))
		}
		for _, sub := range c.Commands {
			walk(sub)
		}
	}
	walk(root)
}

// wrap fills the paragraphs of a text; indented lines stay as they are.
func wrap(text string, width int) string {
	var out []string
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			out = append(out, "```\n"+paragraph+"\n```")
			continue
		}
		var lines []string
		line := ""
		for word := range strings.FieldsSeq(paragraph) {
			if line != "" && len(line)+1+len(word) > width {
				lines, line = append(lines, line), ""
			}
			line = strings.TrimPrefix(line+" "+word, " ")
		}
		out = append(out, strings.Join(append(lines, line), "\n"))
	}
	return strings.Join(out, "\n\n")
}
