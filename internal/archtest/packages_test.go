package archtest_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestGoPackages keeps docs/packages.md what the doc comments say.
func TestGoPackages(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Go packages\n\nWritten by `go test ./internal/archtest -run TestGoPackages -update` from the doc comments. " +
		"These are\nthe packages that other programs can import; `go doc` prints the rest. No release promises that they\nstay as they are before version 1.\n")
	// GOOS decides which files are part of a package.
	for line := range strings.Lines(goCommand(t, []string{"GOOS=linux", "GOARCH=amd64"}, "list", "-f", `{{.ImportPath}}{{range .GoFiles}} {{.}}{{end}}`, "./...")) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module+"/")
		if under(name, "dev") || under(name, "examples") || under(name, "cmd") || strings.Contains(name+"/", "internal/") || strings.HasSuffix(name, "test") {
			continue
		}
		writePackage(t, &b, name, fields[1:])
	}
	kilntest.Golden(t, filepath.Join("..", "..", "docs", "packages.md"), b.Bytes())
}

func writePackage(t *testing.T, b *bytes.Buffer, name string, files []string) {
	t.Helper()
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range files {
		f, err := parser.ParseFile(set, filepath.Join("..", "..", filepath.FromSlash(name), file), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	p, err := doc.NewFromFiles(set, parsed, module+"/"+name)
	if err != nil {
		t.Fatal(err)
	}
	if p.Doc == "" {
		t.Errorf("package %s has no doc comment", name)
	}
	printer := p.Printer()
	printer.HeadingLevel = 3
	printer.HeadingID = func(*comment.Heading) string { return "" }
	printer.DocLinkURL = func(*comment.DocLink) string { return "" }
	fmt.Fprintf(b, "\n## %s\n\n```go\nimport %q\n```\n\n", name, module+"/"+name)
	for line := range strings.Lines(strings.ReplaceAll(string(printer.Markdown(p.Parser().Parse(p.Doc))), "\\`", "`")) {
		b.WriteString(fill(line))
	}
}

// fill breaks a paragraph or an entry of a list into lines; code stays as it is.
func fill(line string) string {
	entry, listed := strings.CutPrefix(line, "  - ")
	if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, " ") && !listed {
		return line
	}
	var out strings.Builder
	indent, width := "", 0
	if listed {
		out.WriteString("- ")
		indent, width = "  ", 2
	}
	for i, word := range strings.Fields(entry) {
		switch size := utf8.RuneCountInString(word); {
		case i == 0:
		case width+1+size > 100:
			out.WriteString("\n" + indent)
			width = len(indent)
		default:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += utf8.RuneCountInString(word)
	}
	return out.String() + "\n"
}
