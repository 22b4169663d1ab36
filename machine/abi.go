package machine

import (
	"bytes"
	"debug/elf"
	"strings"
)

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
