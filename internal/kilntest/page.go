package kilntest

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Page is a page of the documentation that can be followed: files to write and commands to run, in
// the order of the page. "…" in what it shows stands for any text, and as a line for any lines.
type Page struct {
	Script   string // for one shell, because it keeps jobs
	commands []string
	shown    []string
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$")

// The line that says where the output of a command ends.
const pageMark = "--- end of command"

// ReadPage reads a page whose blocks of code are files with titles, or commands with what they
// print. change, which may be nil, is applied to its text first.
func ReadPage(t testing.TB, file string, change func(string) string) *Page {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content := string(text)
	if change != nil {
		content = change(content)
	}
	p := &Page{}
	var script strings.Builder
	script.WriteString("set -m\nexec 2>&1\n")
	for _, block := range fence.FindAllStringSubmatch(content, -1) {
		kind, title, body := block[1], block[2], block[3]
		if title != "" {
			fmt.Fprintf(&script, "mkdir -p \"$(dirname %[1]s)\"\ncat >%[1]s <<'end of file'\n%[2]send of file\n", title, body)
			continue
		}
		if kind != "console" {
			t.Errorf("%s: a block of %s is neither a file nor commands", file, kind)
		}
		for example := range strings.SplitSeq(strings.TrimPrefix(body, "$ "), "\n$ ") {
			line, want, _ := strings.Cut(example, "\n")
			p.commands, p.shown = append(p.commands, line), append(p.shown, strings.TrimRight(want, "\n"))
			fmt.Fprintf(&script, "%s\necho \"%s $?\"\n", line, pageMark)
		}
	}
	p.Script = script.String()
	return p
}

// Compare compares what the script printed with what the page shows, and returns how many commands
// ran. A command fails where the page shows that it does.
func (p *Page) Compare(t testing.TB, printed []byte) int {
	t.Helper()
	parts := bytes.Split(printed, []byte(pageMark+" "))
	if len(parts) != len(p.commands)+1 {
		t.Fatalf("%d commands, %d outputs:\n%s", len(p.commands), len(parts)-1, printed)
	}
	got := string(parts[0])
	for i, want := range p.shown {
		code, next, _ := strings.Cut(string(parts[i+1]), "\n")
		if got := strings.TrimRight(got, "\n"); !Shows(want, got) {
			t.Errorf("$ %s\nthe page shows:\n%s\nit prints:\n%s", p.commands[i], want, got)
		}
		if failed := strings.Contains(want, "\nfailed: "); failed != (code != "0") {
			t.Errorf("$ %s\nexit code %s\n%s", p.commands[i], code, got)
		}
		got = next
	}
	return len(p.commands)
}

// Shows reports whether got is what a page shows.
func Shows(want, got string) bool {
	pattern := "\n" + regexp.QuoteMeta(want)
	pattern = strings.ReplaceAll(pattern, "\n…\n", "(?:\n.*)*\n")
	pattern = strings.ReplaceAll(pattern, "\n…", "(?:\n.*)*")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString("\n" + got)
}
