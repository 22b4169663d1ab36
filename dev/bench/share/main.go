// Command benchshare measures what kiln's compiler launcher adds to a call, beside the same call
// without it: from the start of the process to its end, with a slot from a pool and a record
// written. Calls with and without take turns, so that other work on the machine meets both.
//
// It fails if a launcher adds 10 ms or more to a call, at the median.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/build/launcher"
)

// limit is what a launcher may add.
const limit = 10 * time.Millisecond

func main() {
	kiln := flag.String("kiln", "bin/kiln", "the kiln to measure")
	runs := flag.Int("runs", 200, "how often each command runs")
	flag.Parse()
	if err := measure(context.Background(), *kiln, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "benchshare:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, kiln string, runs int) error {
	kiln, err := filepath.Abs(kiln)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kiln-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	gcc, err := exec.LookPath("g++")
	if err != nil {
		return err
	}
	ccache, err := exec.LookPath("ccache")
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "deps", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o777); err != nil {
			return err
		}
	}
	for _, name := range []string{"g++", "gcc"} {
		if err := os.Symlink(kiln, filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a.cpp"), []byte("#include <vector>\nint f() { return 42; }\n"), 0o666); err != nil {
		return err
	}
	stop, err := pool(ctx, filepath.Join(dir, "slots"))
	if err != nil {
		return err
	}
	defer stop()
	truth, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	config := launcher.Config{
		Row: "row", Package: "demo", Version: "1.0", Work: dir, Bin: filepath.Join(dir, "bin"),
		Tools:  map[string]launcher.Tool{"g++": {Path: gcc, Kind: launcher.GCC, ID: "gcc"}, "gcc": {Path: truth, Kind: launcher.GCC, Refused: "it is measured"}},
		CCache: ccache, CacheDir: filepath.Join(dir, "cache"), CacheBytes: 1e9, Calls: filepath.Join(dir, "calls.jsonl"), Deps: filepath.Join(dir, "deps"),
		Temp: filepath.Join(dir, "tmp"), Slots: filepath.Join(dir, "slots"),
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "launcher.json")
	if err := os.WriteFile(path, text, 0o666); err != nil {
		return err
	}
	env := []string{"PATH=" + config.Bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, launcher.ConfigEnv + "=" + path}
	plain := []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
	cached := append(slices.Clone(plain), "CCACHE_DIR="+config.CacheDir, "CCACHE_CONFIGPATH=/dev/null", "CCACHE_DEPEND=1", "CCACHE_COMPILERTYPE=gcc",
		"CCACHE_COMPILERCHECK=string:gcc", "CCACHE_BASEDIR="+dir, "CCACHE_NOHASHDIR=1")
	compile := []string{"-O1", "-c", "a.cpp", "-o", "a.o"}
	type side struct {
		argv []string
		env  []string
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d calls each\twithout: p10\tmedian\twith: p10\tmedian\tadded: p10\tmedian\tprocessor\t\n", runs)
	var slow error
	for _, m := range []struct {
		name          string
		without, with side
	}{
		{"a compiler that does nothing", side{append([]string{truth}, compile...), plain}, side{append([]string{filepath.Join(config.Bin, "gcc")}, compile...), env}},
		{
			"a compile from ccache",
			side{append([]string{ccache, gcc, "-MD", "-MF", filepath.Join(dir, "a.d")}, compile...), cached},
			side{append([]string{filepath.Join(config.Bin, "g++")}, compile...), env},
		},
		{"a question", side{[]string{gcc, "--version"}, plain}, side{[]string{filepath.Join(config.Bin, "g++"), "--version"}, env}},
	} {
		var times, processor [2][]time.Duration
		for i := range runs + 5 { // the first ones fill caches
			for j, s := range []side{m.without, m.with} {
				cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
				cmd.Dir, cmd.Env = dir, s.env
				start := time.Now()
				if text, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("%v: %w\n%s", s.argv, err, text)
				}
				if i >= 5 {
					times[j] = append(times[j], time.Since(start))
					processor[j] = append(processor[j], cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
				}
			}
		}
		for _, list := range [][]time.Duration{times[0], times[1], processor[0], processor[1]} {
			slices.Sort(list)
		}
		at := func(list []time.Duration, percent int) time.Duration { return list[len(list)*percent/100] }
		added := at(times[1], 50) - at(times[0], 50)
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", m.name, ms(at(times[0], 10)), ms(at(times[0], 50)), ms(at(times[1], 10)), ms(at(times[1], 50)),
			ms(at(times[1], 10)-at(times[0], 10)), ms(added), ms(at(processor[1], 50)-at(processor[0], 50)))
		if added >= limit {
			slow = fmt.Errorf("a launcher adds %v to %s, want less than %v", added.Round(10*time.Microsecond), m.name, limit)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return slow
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

// pool gives a slot to everybody.
func pool(ctx context.Context, path string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				if _, err := r.ReadString('\n'); err != nil {
					return
				}
				fmt.Fprintln(conn, "go")
				_, _ = r.ReadString('\n')
			}()
		}
	}()
	return func() { _ = listener.Close() }, nil
}
