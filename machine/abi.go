package machine

import (
	"bytes"
	"debug/elf"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// TorchABI is the C++ ABI of a torch that is not here, as the table knows it: "0" or "1" as in
// _GLIBCXX_USE_CXX11_ABI, or "" if the table does not know or the system has no such choice. That
// of an installed torch is read from its library, because distributions build their own.
func TorchABI(table *compat.Table, torch, os string) string {
	public, label, _ := strings.Cut(torch, "+")
	cuda, rocm := compat.ParseToolkitTag(label)
	val, known := table.CXX11ABI(public, cuda, rocm, os)
	switch {
	case !known:
		return ""
	case val:
		return "1"
	}
	return "0"
}

// symbolABI says for which C++ ABI a torch library was compiled, from the names of the
// functions it exports that take a std::string: "0", "1", or "" if it has none.
func symbolABI(file []byte) string {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return ""
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return ""
	}
	before, after := 0, 0
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || !strings.HasPrefix(s.Name, "_ZN") || !strings.Contains(s.Name, "c10") {
			continue
		}
		switch {
		case strings.Contains(s.Name, "__cxx11"):
			after++
		case hasOldString(s.Name):
			before++
		}
	}
	switch {
	case after > before:
		return "1"
	case before > 0:
		return "0"
	}
	return ""
}
