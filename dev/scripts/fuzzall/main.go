// Command fuzzall runs every fuzz target of the given packages for a while, two at
// a time, and shows what each did:
//
//	TARGET                  RESULT  EXECS    NEW  TOTAL
//	./wheel.FuzzMetadata    ok      1203441  12   148
//
// With -record the inputs worth keeping are added to the corpora that are checked in.
//
// EXECS is how many inputs were tried, NEW how many of them reached code that no
// earlier input had, TOTAL how many such inputs are in the fuzzer's cache. It fails
// if any target fails; the go command then says which input did it and where that is kept.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// atOnce is how many targets run at the same time. Each gets an equal share of the cores.
const atOnce = 2

func main() {
	match := flag.String("match", ".", "run only targets whose package.Name matches this `regexp`")
	length := flag.Duration("time", 30*time.Second, "how long each target runs")
	record := flag.Bool("record", false, "add what was found to testdata/corpus of each package")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, *match, *length, *record, packages)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, match string, length time.Duration, record bool, packages []string) error {
	re, err := regexp.Compile(match)
	if err != nil {
		return err
	}
	all, err := list(ctx, packages)
	if err != nil {
		return err
	}
	var targets []target
	for _, t := range all {
		if re.MatchString(t.String()) {
			targets = append(targets, t)
		}
	}
	if len(targets) == 0 {
		return fmt.Errorf("no fuzz target of %s matches %q", strings.Join(packages, " "), match)
	}
	fmt.Fprintf(w, "fuzzing %d targets, %s each, %d at a time\n", len(targets), length, atOnce)

	results := make([]result, len(targets))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	var mu sync.Mutex // of w
	for i, t := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = fuzz(ctx, t, length)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(w, "%s  %s\n", t, results[i].state())
			if results[i].err != nil {
				fmt.Fprintf(w, "%s\n", indent(results[i].output))
			}
		})
	}
	wg.Wait()

	failed := 0
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nTARGET\tRESULT\tEXECS\tNEW\tTOTAL")
	for i, t := range targets {
		r := results[i]
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\n", t, r.state(), r.execs, r.fresh, r.total)
		if r.err != nil {
			failed++
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d targets failed", failed, len(targets))
	}
	if record {
		return recordAll(ctx, w, targets)
	}
	return nil
}

// recordAll adds the fuzzer's cache to the corpora that are checked in.
func recordAll(ctx context.Context, w io.Writer, targets []target) error {
	cache, err := exec.CommandContext(ctx, "go", "env", "GOCACHE").Output()
	if err != nil {
		return err
	}
	for _, t := range targets {
		n, err := fuzzcorpus.Record(filepath.Join(strings.TrimSpace(string(cache)), "fuzz", t.pkg, t.name), t.dir(), t.name)
		if err != nil {
			return fmt.Errorf("record %s: %w", t, err)
		}
		fmt.Fprintf(w, "%s: %d inputs kept\n", t, n)
	}
	return nil
}

// target is one fuzz function.
type target struct{ pkg, name string }

func (t target) String() string { return t.dir() + "." + t.name }

// dir is the package's folder, as make is run in the root of the module.
func (t target) dir() string {
	const module = "github.com/kiln-build/kiln"
	return "." + strings.TrimPrefix(t.pkg, module)
}

// list asks the test binaries for their fuzz functions.
func list(ctx context.Context, packages []string) ([]target, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-list", "^Fuzz"}, packages...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	runErr := cmd.Run()
	targets, said, err := parseList(&stdout)
	if err := errors.Join(runErr, err); err != nil {
		return nil, fmt.Errorf("list fuzz targets: %w\n%s%s", err, said, stderr.Bytes())
	}
	return targets, nil
}

// parseList reads the events of `go test -json -list`, and returns all other output as well.
func parseList(r io.Reader) (targets []target, said string, err error) {
	var other strings.Builder
	for d := json.NewDecoder(r); ; {
		var e struct{ Action, Package, Output string }
		if err := d.Decode(&e); err == io.EOF {
			return targets, other.String(), nil
		} else if err != nil {
			return nil, other.String(), err
		}
		name := strings.TrimSpace(e.Output)
		if e.Action == "output" && strings.HasPrefix(name, "Fuzz") && !strings.ContainsAny(name, " \t") {
			targets = append(targets, target{e.Package, name})
		} else {
			other.WriteString(e.Output)
		}
	}
}

// result is what one target did.
type result struct {
	err                 error
	output              string
	execs, fresh, total int64
}

func (r result) state() string {
	if r.err != nil {
		return "FAILED"
	}
	return "ok"
}

func fuzz(ctx context.Context, t target, length time.Duration) result {
	workers := max(1, runtime.GOMAXPROCS(0)/atOnce)
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$",
		"-fuzztime", length.String(), "-fuzzminimizetime", "20x", "-parallel", strconv.Itoa(workers), t.pkg)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go ends its workers
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	r := parseProgress(string(out))
	if err != nil && !endOfTime(r.output) {
		r.err = err
	}
	return r
}

// progress is the line that the fuzzer writes every three seconds.
var progress = regexp.MustCompile(`(?m)^fuzz: elapsed: .*, execs: (\d+) \(.*\), new interesting: (\d+) \(total: (\d+)\)$`)

func parseProgress(output string) result {
	r := result{output: output}
	all := progress.FindAllStringSubmatch(output, -1)
	if len(all) == 0 {
		return r
	}
	last := all[len(all)-1]
	for i, p := range []*int64{&r.execs, &r.fresh, &r.total} {
		*p, _ = strconv.ParseInt(last[i+1], 10, 64) // digits, by the expression
	}
	return r
}

// deadlineOnly is a failure that consists of nothing but the end of -fuzztime.
var deadlineOnly = regexp.MustCompile(`(?m)^--- FAIL: Fuzz\w+ \([^)]*\)\n\s+context deadline exceeded\nFAIL$`)

// endOfTime reports whether a run failed only because its time was over while the
// fuzzer was busy, which the go command takes for a failure of the target when the
// machine is loaded. There is no failing input then.
func endOfTime(output string) bool {
	return deadlineOnly.MatchString(output) && !strings.Contains(output, "Failing input written to")
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}
