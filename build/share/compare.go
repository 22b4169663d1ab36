package share

import (
	"bytes"
	"debug/elf"
	"fmt"
	"regexp"
)

// Verdict is how two objects compare.
type Verdict struct {
	Same bool `json:"same"`
	// Inconclusive says that the only difference is an identifier that nvcc derives from the
	// folder, inside compressed code.
	Inconclusive bool `json:"inconclusive,omitempty"`
	// Where is the first section that differs.
	Where string `json:"where,omitempty"`
}

// What nvcc writes differently each time, or in each folder, for the same input, measured with
// 12.4:
var (
	// the name of its temporary files, with its process number, as name of the source in the symbol
	// table and in debug information;
	nvccTemp = regexp.MustCompile(`tmpxft_[0-9a-f]{8}_[0-9a-f]{8}-[0-9]+_`)
	// the identifier of the module, the first part of which is a digest of the path of the source,
	// in the names of what is local to it.
	nvccModule = regexp.MustCompile(`_[0-9a-f]{8}(_[0-9]+_[A-Za-z0-9_]+_[0-9a-f]{8})`)
)

func normalize(b []byte) []byte {
	b = nvccTemp.ReplaceAll(b, []byte("tmpxft_"))
	return nvccModule.ReplaceAll(b, []byte("_module$1"))
}

// CompareObjects compares two ELF objects, but for what nvcc is known to write differently. lines
// says that it wrote line tables for GPUs, which hold the times of headers.
func CompareObjects(a, b string, lines bool) (Verdict, error) {
	fa, err := elf.Open(a)
	if err != nil {
		return Verdict{}, fmt.Errorf("read %s: %w", a, err)
	}
	defer fa.Close()
	fb, err := elf.Open(b)
	if err != nil {
		return Verdict{}, fmt.Errorf("read %s: %w", b, err)
	}
	defer fb.Close()
	if fa.Machine != fb.Machine || fa.Type != fb.Type || fa.Class != fb.Class {
		return Verdict{Where: "header"}, nil
	}
	if len(fa.Sections) != len(fb.Sections) {
		return Verdict{Where: "number of sections"}, nil
	}
	fatbin := Verdict{Same: true}
	for i, sa := range fa.Sections {
		sb := fb.Sections[i]
		name := string(normalize([]byte(sa.Name)))
		if name != string(normalize([]byte(sb.Name))) || sa.Type != sb.Type || sa.Flags != sb.Flags || sa.Link != sb.Link || sa.Info != sb.Info {
			return Verdict{Where: sa.Name}, nil
		}
		switch sa.Type {
		case elf.SHT_NULL, elf.SHT_NOBITS, elf.SHT_STRTAB, elf.SHT_SYMTAB:
			if sa.Type == elf.SHT_NOBITS && sa.Size != sb.Size {
				return Verdict{Where: sa.Name}, nil
			}
			continue // names are compared with the symbols
		}
		da, err := sa.Data()
		if err != nil {
			return Verdict{}, fmt.Errorf("read %s: %s: %w", a, sa.Name, err)
		}
		db, err := sb.Data()
		if err != nil {
			return Verdict{}, fmt.Errorf("read %s: %s: %w", b, sb.Name, err)
		}
		if bytes.Equal(da, db) || bytes.Equal(normalize(da), normalize(db)) {
			continue
		}
		if sa.Name == ".nv_fatbin" {
			fatbin = Verdict{Where: sa.Name}
			continue
		}
		return Verdict{Where: sa.Name}, nil
	}
	same, moved, err := compareSymbols(fa, fb)
	if err != nil || !same {
		return Verdict{Where: "symbols"}, err
	}
	if !fatbin.Same && (moved || lines) {
		fatbin.Inconclusive = true
	}
	return fatbin, nil
}

// compareSymbols also tells whether identifiers of modules differ: the objects were made in
// different folders.
func compareSymbols(fa, fb *elf.File) (same, moved bool, err error) {
	sa, err := symbols(fa)
	if err != nil {
		return false, false, err
	}
	sb, err := symbols(fb)
	if err != nil {
		return false, false, err
	}
	if len(sa) != len(sb) {
		return false, false, nil
	}
	for i, a := range sa {
		b := sb[i]
		if a.Name != b.Name {
			ta, tb := nvccTemp.ReplaceAllString(a.Name, ""), nvccTemp.ReplaceAllString(b.Name, "")
			if string(normalize([]byte(a.Name))) != string(normalize([]byte(b.Name))) {
				return false, false, nil
			}
			moved = moved || ta != tb
		}
		if a.Info != b.Info || a.Other != b.Other || a.Section != b.Section || a.Value != b.Value || a.Size != b.Size {
			return false, false, nil
		}
	}
	return true, moved, nil
}

func symbols(f *elf.File) ([]elf.Symbol, error) {
	list, err := f.Symbols()
	if err != nil && len(list) == 0 {
		return nil, nil //nolint:nilerr // an object without symbols
	}
	return list, err
}
