package audit

import (
	"embed"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/wheel"
)

// builtinFiles are snapshots of the torch wheels on PyPI and of Python interpreters, made by
// `kiln audit snapshot`; snapshots/README.md says how.
//
//go:embed snapshots
var builtinFiles embed.FS

// A builtinName is what the name of a builtin snapshot says.
type builtinName struct {
	file, kind, version, platform string
}

var builtinNames = sync.OnceValue(func() []builtinName {
	entries, err := builtinFiles.ReadDir("snapshots")
	if err != nil {
		panic(err) // they are in the program
	}
	var out []builtinName
	for _, e := range entries {
		stem, ok := strings.CutSuffix(e.Name(), ".kilnsnap")
		parts := strings.Split(stem, "-")
		if !ok || len(parts) != 4 {
			continue
		}
		out = append(out, builtinName{e.Name(), parts[0], parts[1], parts[2]})
	}
	slices.SortFunc(out, func(a, b builtinName) int {
		v, _ := wheel.ParseVersion(a.version)
		w, _ := wheel.ParseVersion(b.version)
		return firstNonZero(strings.Compare(a.kind, b.kind), v.Compare(w), strings.Compare(a.file, b.file))
	})
	return out
})

// Builtins are the versions of torch that snapshots are built in for, oldest first, with their
// local part. The caller owns the slice.
func Builtins() []string {
	var out []string
	for _, n := range builtinNames() {
		if n.kind == KindTorch {
			out = append(out, n.version)
		}
	}
	return out
}

// Builtin returns the builtin snapshot of a torch version: "2.6.0+cu124", or "2.6.0" for the one
// there is.
func Builtin(version string) (*Snapshot, error) { return builtin(KindTorch, version) }

func builtin(kind, version string) (*Snapshot, error) {
	for _, n := range builtinNames() {
		public, _, _ := strings.Cut(n.version, "+")
		if n.kind == kind && (version == "" || n.version == version || public == version) {
			return readBuiltin(n.file, nil)
		}
	}
	if kind == KindTorch {
		return nil, fmt.Errorf("no snapshot of torch %s is built in; there are %s", version, strings.Join(Builtins(), ", "))
	}
	return nil, fmt.Errorf("no snapshot of %s %s is built in", kind, version)
}

func readBuiltin(file string, wanted []string) (*Snapshot, error) {
	data, err := builtinFiles.ReadFile("snapshots/" + file)
	if err != nil {
		return nil, err
	}
	s, err := decodeSnapshot(data, wanted)
	if err != nil {
		return nil, fmt.Errorf("builtin snapshot %s: %w", file, err)
	}
	return s, nil
}

// builtinTorches gives the builtin snapshots of torch for a platform, oldest first, with those of their names that are wanted, which are sorted.
// A few are read ahead, so that all processors have something to do and few are in memory.
func builtinTorches(platform string, wanted []string) iter.Seq[*Snapshot] {
	return func(yield func(*Snapshot) bool) {
		var files []string
		for _, n := range builtinNames() {
			if n.kind == KindTorch && n.platform == platform {
				files = append(files, n.file)
			}
		}
		ahead := min(runtime.GOMAXPROCS(0), 3)
		var reading []chan *Snapshot
		for i := range len(files) + ahead {
			if i < len(files) {
				done := make(chan *Snapshot, 1) // nobody has to wait for it
				reading = append(reading, done)
				go func() {
					s, err := readBuiltin(files[i], wanted)
					if err != nil {
						panic(err) // a test reads them all
					}
					done <- s
				}()
			}
			if i >= ahead-1 && len(reading) > 0 {
				s := <-reading[0]
				if reading = reading[1:]; !yield(s) {
					return
				}
			}
		}
	}
}

// systemNames are the symbols of glibc, libstdc++ and their companions, sorted; nil where kiln
// has no record.
var systemNames = sync.OnceValue(func() *Snapshot {
	s, err := builtin(KindSystem, "")
	if err != nil {
		return nil
	}
	return s
})
