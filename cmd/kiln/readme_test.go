package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestReadme runs every `$ bin/kiln …` line of the README's console blocks and compares
// what it prints with what the README shows. A line of "…" stands for any lines, and
// "…" inside a line for any text.
func TestReadme(t *testing.T) {
	t.Chdir("../..")
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("bin", 0o755); err != nil { // where the examples write
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
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
					t.Errorf("README shows:\n%s\nkiln prints:\n%s", want, got)
				}
			})
		}
	}
	if ran < 3 {
		t.Errorf("ran %d examples of the README, want at least 3", ran)
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
