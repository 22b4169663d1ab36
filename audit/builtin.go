package audit

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/audit/internal/table"
)

// The snapshots that are built in: a table for each kind and system. snapshots/README.md says what
// they were made from; `go run ./audit/internal/generate` adds to them.
var (
	//go:embed snapshots/torch.table
	torchTable string
	//go:embed snapshots/torch-windows.table
	torchWindowsTable string
	//go:embed snapshots/python.table
	pythonTable string
	//go:embed snapshots/python-windows.table
	pythonWindowsTable string
	//go:embed snapshots/system.table
	systemTable string
)

var builtinTables = sync.OnceValue(func() map[string]*table.Table {
	out := map[string]*table.Table{}
	for name, data := range map[string]string{
		"torch": torchTable, "torch-windows": torchWindowsTable, "python": pythonTable, "python-windows": pythonWindowsTable, "system": systemTable,
	} {
		t, err := table.Open(data)
		if err != nil {
			panic(fmt.Errorf("builtin snapshots of %s: %w", name, err)) // they are in the program
		}
		out[name] = t
	}
	return out
})

// tableName is the table that has the snapshots of a kind for a platform.
func tableName(kind, platform string) string {
	if strings.HasPrefix(platform, "win") {
		return kind + "-windows"
	}
	return kind
}

// Table is the name of the table that a snapshot belongs into, to be built in.
func (s *Snapshot) Table() string { return tableName(s.Kind, s.Platform) }

// splitLabel gives what a label such as "torch-2.6.0+cu124-linux_x86_64-84280550c1d9" says.
func splitLabel(label string) (version, platform string) {
	parts := strings.Split(label, "-")
	if len(parts) != 4 {
		return "", ""
	}
	return parts[1], parts[2]
}

// Builtins are the versions of torch that snapshots for Linux are built in for, oldest first, with
// their local part. The caller owns the slice.
func Builtins() []string { return builtinVersions("linux_x86_64") }

func builtinVersions(platform string) []string {
	var out []string
	for _, label := range builtinTables()[tableName(KindTorch, platform)].Labels() {
		version, _ := splitLabel(label)
		out = append(out, version)
	}
	return out
}

// Builtin returns the builtin snapshot of a torch version: "2.6.0+cu124" of Linux, "2.6.0+cpu" of
// Windows, or "2.6.0" for the one of Linux there is. An audit of a Windows wheel takes that of
// Windows in its place.
func Builtin(version string) (*Snapshot, error) {
	s, err := builtin(KindTorch, version, "linux_x86_64")
	if err == nil {
		return s, nil
	}
	if s, werr := builtin(KindTorch, version, "win_amd64"); werr == nil {
		return s, nil
	}
	return nil, err
}

func builtin(kind, version, platform string) (*Snapshot, error) {
	t := builtinTables()[tableName(kind, platform)]
	i := slices.IndexFunc(t.Labels(), func(label string) bool {
		full, p := splitLabel(label)
		public, _, _ := strings.Cut(full, "+")
		return p == platform && (version == "" || version == full || version == public)
	})
	if i >= 0 {
		list, err := readReleases(t, []int{i}, nil)
		if err != nil {
			return nil, fmt.Errorf("builtin snapshot %s: %w", t.Labels()[i], err)
		}
		return list[0], nil
	}
	if kind == KindTorch {
		return nil, fmt.Errorf("no snapshot of torch %s is built in; there are %s", version, strings.Join(builtinVersions(platform), ", "))
	}
	return nil, fmt.Errorf("no snapshot of %s %s is built in", kind, version)
}

// builtinTorches gives the builtin snapshots of torch for a platform, oldest first, with those of
// their names that are wanted, which are sorted.
func builtinTorches(platform string, wanted []string) []*Snapshot {
	t := builtinTables()[tableName(KindTorch, platform)]
	var which []int
	for i, label := range t.Labels() {
		if _, p := splitLabel(label); p == platform {
			which = append(which, i)
		}
	}
	list, err := readReleases(t, which, wanted)
	if err != nil {
		panic(fmt.Errorf("builtin snapshots of torch: %w", err)) // a test reads them all
	}
	return list
}

// readReleases reads snapshots from a table, with those of their names that are wanted, which are
// sorted; nil means all.
func readReleases(t *table.Table, which []int, wanted []string) ([]*Snapshot, error) {
	releases, err := t.Read(which, wanted)
	if err != nil {
		return nil, err
	}
	var out []*Snapshot
	for _, r := range releases {
		s := new(Snapshot)
		if err := json.Unmarshal(r.Description, s); err != nil {
			return nil, fmt.Errorf("description: %w", err)
		}
		if !slices.Contains([]string{KindTorch, KindPython, KindSystem}, s.Kind) {
			return nil, fmt.Errorf("unknown kind %q", s.Kind)
		}
		if !strings.HasPrefix(r.Label, s.stem()) {
			return nil, fmt.Errorf("%s is labelled %s", s.Title(), r.Label)
		}
		for i := range s.Libraries {
			l := &s.Libraries[i]
			if i > 0 && s.Libraries[i-1].File >= l.File {
				return nil, errors.New("libraries are not sorted")
			}
			if l.names = r.Names[l.File]; wanted == nil && l.Count != len(l.names) {
				return nil, fmt.Errorf("library %s: %d symbols, announced %d", l.File, len(l.names), l.Count)
			}
		}
		s.index()
		out = append(out, s)
	}
	return out, nil
}

// systemNames are the symbols of glibc, libstdc++ and their companions, sorted; nil where kiln
// has no record.
var systemNames = sync.OnceValue(func() *Snapshot {
	s, err := builtin(KindSystem, "", "linux_x86_64")
	if err != nil {
		return nil
	}
	return s
})
