// Command benchaudit measures `kiln audit` against the programs people use for the same
// questions: auditwheel show on a wheel, cuobjdump on a library. It prints times, ratios and the
// peak memory of each.
//
//	go run ./dev/bench/audit -kiln bin/kiln -auditwheel PATH -cuobjdump PATH -library libtorch.so
package main

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
)

func main() {
	kiln := flag.String("kiln", "bin/kiln", "the kiln `program`")
	auditwheel := flag.String("auditwheel", "auditwheel", "the auditwheel `program`; empty to leave it out")
	cuobjdump := flag.String("cuobjdump", "cuobjdump", "the cuobjdump `program`; empty to leave it out")
	library := flag.String("library", "", "a large shared `library`, such as libtorch_cuda.so (required)")
	runs := flag.Int("runs", 3, "measure each `n` times and take the best")
	flag.Parse()
	if *library == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := bench(*kiln, *auditwheel, *cuobjdump, *library, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "benchaudit:", err)
		os.Exit(1)
	}
}

// A result is the best of several runs.
type result struct {
	wall time.Duration
	peak int64 // bytes
}

func (r result) String() string {
	return fmt.Sprintf("%8.2f s  %6.0f MB", r.wall.Seconds(), float64(r.peak)/1e6)
}

func bench(kiln, auditwheel, cuobjdump, library string, runs int) error {
	info, err := os.Stat(library)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "benchaudit-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%s, %.2f GB\n", filepath.Base(library), float64(info.Size())/1e9)
	alone, err := bestOf(runs, kiln, "audit", "--no-table", library)
	if err != nil {
		return err
	}
	fmt.Printf("  %-34s %s\n", "kiln audit LIBRARY", alone)
	if cuobjdump != "" {
		r, err := bestOf(1, cuobjdump, "--list-elf", library)
		if err != nil {
			return err
		}
		fmt.Printf("  %-34s %s  %6.1f times as long\n", "cuobjdump --list-elf LIBRARY", r, r.wall.Seconds()/alone.wall.Seconds())
	}
	for _, method := range []struct {
		name string
		id   uint16
	}{{"stored", zip.Store}, {"deflated", zip.Deflate}} {
		wheel := filepath.Join(dir, method.name, "bench-1.0-py3-none-linux_x86_64.whl")
		if err := makeWheel(wheel, library, method.id); err != nil {
			return err
		}
		if err := seen(kiln, wheel); err != nil {
			return err
		}
		var first result
		for _, flags := range [][]string{{"--no-table", "--no-digests"}, {"--no-table"}} {
			r, err := bestOf(runs, kiln, append([]string{"audit", wheel}, flags...)...)
			if err != nil {
				return err
			}
			fmt.Printf("  %-34s %s\n", "kiln audit, "+method.name+", "+flags[len(flags)-1], r)
			first = r
		}
		if auditwheel != "" {
			r, err := bestOf(1, auditwheel, "show", wheel)
			if err != nil {
				return err
			}
			fmt.Printf("  %-34s %s  %6.1f times as long as kiln, %.1f times as the library alone\n", "auditwheel show, "+method.name, r,
				r.wall.Seconds()/first.wall.Seconds(), r.wall.Seconds()/alone.wall.Seconds())
		}
	}
	return nil
}

// bestOf runs a program and keeps its best time. Findings are no failure.
func bestOf(runs int, program string, args ...string) (result, error) {
	best := result{wall: 1 << 62}
	for range runs {
		cmd := exec.Command(program, args...) //nolint:gosec,noctx // what to run is the user's choice
		start := time.Now()
		out, err := cmd.CombinedOutput()
		wall := time.Since(start)
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() > 1 || cmd.ProcessState.ExitCode() < 0 {
			return best, fmt.Errorf("%s %v: %w\n%s", program, args, err, out)
		}
		if wall < best.wall {
			best = result{wall, measure.PeakMemory(cmd.ProcessState)}
		}
	}
	return best, nil
}

// seen makes sure that kiln looks into the library of a wheel: a refusal would be quick.
func seen(kiln, wheel string) error {
	out, err := exec.Command(kiln, "audit", "--json", "--no-table", "--no-digests", wheel).Output() //nolint:gosec,noctx // what to run is the user's choice
	var answer struct {
		Wheels []struct {
			Objects  []struct{ Undefined, Defined int }
			Findings []struct{ Rule, Message string }
		}
	}
	if jerr := json.Unmarshal(out, &answer); jerr != nil {
		return errors.Join(err, jerr)
	}
	if len(answer.Wheels) != 1 || len(answer.Wheels[0].Objects) != 1 || answer.Wheels[0].Objects[0].Defined+answer.Wheels[0].Objects[0].Undefined == 0 {
		return fmt.Errorf("kiln did not read the library: %+v", answer.Wheels)
	}
	return nil
}

// makeWheel packs the library into a wheel.
func makeWheel(path, library string, method uint16) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	z := zip.NewWriter(f)
	record := ""
	add := func(name string, r io.ReadSeeker) error {
		// Twice: what is stored has its size and checksum before its bytes.
		sum, crc := sha256.New(), crc32.NewIEEE()
		n, err := io.Copy(io.MultiWriter(sum, crc), r)
		if err != nil {
			return err
		}
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return err
		}
		header := &zip.FileHeader{Name: name, Method: method, CRC32: crc.Sum32(), CompressedSize64: uint64(n), UncompressedSize64: uint64(n)}
		create := z.CreateRaw
		if method != zip.Store {
			create = z.CreateHeader
		}
		w, err := create(header)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		record += fmt.Sprintf("%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum.Sum(nil)), n)
		return err
	}
	lib, err := os.Open(library)
	if err != nil {
		return err
	}
	defer lib.Close()
	if err := add("bench/"+filepath.Base(library), lib); err != nil {
		return err
	}
	info := "bench-1.0.dist-info/"
	for _, file := range [][2]string{
		{"METADATA", "Metadata-Version: 2.1\nName: bench\nVersion: 1.0\n"},
		{"WHEEL", "Wheel-Version: 1.0\nGenerator: benchaudit\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"},
	} {
		if err := add(info+file[0], strings.NewReader(file[1])); err != nil {
			return err
		}
	}
	w, err := z.Create(info + "RECORD")
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, record+info+"RECORD,,\n"); err != nil {
		return err
	}
	return z.Close()
}
