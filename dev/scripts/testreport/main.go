// Command testreport closes a test run: it reads the events that `go test -json`
// wrote, lists every skipped test with its reason, and ends with one line
//
//	12 passed, 0 failed, 1 skipped
//
// so that a run that has gone quiet is seen. A test that was run again counts by its last result; one
// that failed beside the others and passed alone is listed first, with what it said. With -strict a skip whose reason is
// not in the list of allowed ones fails the run, as does a run without any test.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
)

func main() {
	allow := flag.String("allow", "", "file of `patterns` of skips that -strict accepts, one regular expression a line")
	strict := flag.Bool("strict", false, "fail if a test was skipped that no pattern of -allow accepts")
	summary := flag.String("summary", "", "also write the line of counts to this `file`")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: testreport [flags] EVENTS")
		os.Exit(2)
	}
	if err := run(os.Stdout, flag.Arg(0), *allow, *summary, *strict); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, events, allow, summary string, strict bool) error {
	patterns, err := readPatterns(allow)
	if err != nil {
		return err
	}
	f, err := os.Open(events)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := readEvents(f)
	if err != nil {
		return fmt.Errorf("%s: %w", events, err)
	}

	for _, f := range r.unsteady {
		fmt.Fprintf(w, "\nUNSTEADY: %s.%s failed beside the others and passed alone:\n%s", shortPackage(f.pkg), f.test, f.output)
	}
	var refused int
	if len(r.skips) > 0 {
		fmt.Fprintf(w, "\nskipped:\n")
	}
	for _, s := range r.skips {
		mark := ""
		if strict && !patterns.match(s.String()) {
			mark = "  (not allowed)"
			refused++
		}
		fmt.Fprintf(w, "  %s%s\n", s, mark)
	}
	// The counts come last, whatever else there is to say.
	switch {
	case refused > 0:
		err = fmt.Errorf("%d tests were skipped for a reason that is not in %s", refused, allow)
	case r.passed+r.failed+len(r.skips) == 0:
		err = errors.New("no test ran")
	}
	line := fmt.Sprintf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skips))
	fmt.Fprint(w, line)
	if summary != "" {
		err = errors.Join(err, os.WriteFile(summary, []byte(line), 0o666))
	}
	return err
}

// patterns are the regular expressions of the file of allowed skips.
type patterns []*regexp.Regexp

// readPatterns reads one expression a line; empty lines and lines that start with
// # do not count.
func readPatterns(name string) (patterns, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var p patterns
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
		p = append(p, re)
	}
	return p, nil
}

func (p patterns) match(s string) bool {
	for _, re := range p {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}

// skip is a skipped test and what it said.
type skip struct {
	pkg, test, reason string
}

// String is what the patterns are matched against and what is shown.
func (s skip) String() string {
	return fmt.Sprintf("%s.%s: %s", s.pkg, s.test, s.reason)
}

// results counts tests and subtests alike, as gotestsum does. A package that does
// not build, or dies outside a test, counts as one failure.
type results struct {
	passed, failed int
	skips          []skip
	unsteady       []failure
}

// failure is a failed test and everything it printed.
type failure struct {
	testKey
	output string
}

// event is the part of a test2json event that matters here.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

type testKey struct{ pkg, test string }

func readEvents(r io.Reader) (results, error) {
	var res results
	output := map[testKey][]string{}
	last := map[testKey]string{} // how it ended
	failures := map[testKey]failure{}
	broken := map[string]bool{}   // packages whose last end was a failure
	failedIn := map[string]bool{} // packages with a failed test
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 || line[0] != '{' {
			continue // a word of the go command itself
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return res, fmt.Errorf("bad event %.80q: %w", line, err)
		}
		key := testKey{e.Package, e.Test}
		switch {
		case e.Action == "output" && e.Test != "":
			output[key] = append(output[key], e.Output)
			continue
		case e.Test == "":
			if e.Action == "fail" || e.Action == "pass" || e.Action == "skip" {
				broken[e.Package] = e.Action == "fail"
			}
			continue
		case e.Action == "pass":
			if last[key] == "fail" {
				res.unsteady = append(res.unsteady, failures[key])
			}
		case e.Action == "fail":
			failures[key] = failure{key, strings.Join(output[key], "")}
			failedIn[e.Package] = true
		case e.Action == "skip":
			if last[key] != "skip" {
				res.skips = append(res.skips, skip{shortPackage(e.Package), e.Test, reason(output[key])})
			}
		default:
			continue
		}
		last[key] = e.Action
		delete(output, key)
	}
	for _, action := range last {
		switch action {
		case "pass":
			res.passed++
		case "fail":
			res.failed++
		}
	}
	for pkg, failed := range broken {
		if failed && !failedIn[pkg] {
			res.failed++
		}
	}
	return res, scanner.Err()
}

// shortPackage drops the module path, which is the same for all.
func shortPackage(pkg string) string {
	const module = "github.com/kiln-build/kiln"
	if pkg == module {
		return path.Base(module)
	}
	return strings.TrimPrefix(pkg, module+"/")
}

// place is the file and line that t.Skip puts before its text.
var place = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason finds what t.Skip said in the output of a test.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		said = append(said, place.ReplaceAllString(line, ""))
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " | ")
}
