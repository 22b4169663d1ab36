package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestReadme runs every `$ bin/kiln …` line of the console blocks of the README and of
// docs/overview.md, and compares what it prints with what they show. A line of "…" stands for any
// lines, and "…" inside a line for any text. The README fits a screen, and its pictures are there.
func TestReadme(t *testing.T) {
	t.Chdir("../..")
	var text []byte
	for _, page := range []string{"README.md", "docs/overview.md"} {
		part, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(part, []byte("\n")); lines > 80 {
			t.Errorf("%s has %d lines; what is more than a first look belongs to another page", page, lines)
		}
		for _, m := range regexp.MustCompile(`!\[.*?\]\((.*?)\)`).FindAllSubmatch(part, -1) {
			if info, err := os.Stat(string(m[1])); err != nil || info.Size() > 100<<10 {
				t.Errorf("%s: %s: %v; a picture has at most 100 KiB (make pictures)", page, m[1], err)
			}
		}
		text = append(text, part...)
	}
	if err := os.MkdirAll("bin", 0o755); err != nil { // where the examples write
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for example := range strings.SplitSeq(strings.TrimPrefix(block[1], "$ "), "\n$ ") {
			line, want, _ := strings.Cut(example, "\n")
			command, ok := strings.CutPrefix(line, "bin/kiln ")
			if !ok {
				t.Errorf("cannot run %q", line)
				continue
			}
			ran++
			t.Run(command, func(t *testing.T) {
				var out bytes.Buffer
				run(shellWords(command), nil, &out, &out)
				if got := strings.TrimRight(out.String(), "\n"); !kilntest.Shows(strings.TrimRight(want, "\n"), got) {
					t.Errorf("the page shows:\n%s\nkiln prints:\n%s", want, got)
				}
			})
		}
	}
	if ran < 5 {
		t.Errorf("ran %d examples, want at least 5", ran)
	}
}

// shellWords splits a command line of the README, where double quotes keep blanks.
func shellWords(s string) []string {
	var words []string
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}
