package audit

import (
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// A CXXABI says which of libstdc++'s two kinds of strings and lists a file was compiled with.
type CXXABI string

// The values.
const (
	CXXABIUnknown CXXABI = ""      // no symbol tells
	CXXABIOld     CXXABI = "old"   // _GLIBCXX_USE_CXX11_ABI=0
	CXXABINew     CXXABI = "new"   // _GLIBCXX_USE_CXX11_ABI=1
	CXXABIMixed   CXXABI = "mixed" // both, usually because of a library linked statically
)

// symbolABI says which ABI the name of a C++ symbol was made with. The old strings are the
// substitution Ss of the mangling; that it is one, and not two letters of an identifier, is
// left to the demangler.
func symbolABI(name string) CXXABI {
	if !strings.HasPrefix(name, "_Z") {
		return CXXABIUnknown
	}
	if strings.Contains(name, "__cxx11") || strings.Contains(name, "B5cxx11") {
		return CXXABINew
	}
	if strings.HasPrefix(name, "_ZNSs") || strings.HasPrefix(name, "_ZNKSs") {
		return CXXABIOld
	}
	if !strings.Contains(name, "Ss") && !strings.Contains(name, "St4listI") {
		return CXXABIUnknown
	}
	text := demangled(name)
	for _, old := range []string{"std::string", "std::list<"} {
		for rest := text; ; {
			i := strings.Index(rest, old)
			if i < 0 {
				break
			}
			after := rest[i+len(old):]
			// Not std::string_view, nor mystd::string.
			if (old[len(old)-1] == '<' || after == "" || !identByte(after[0])) && (i == 0 || !identByte(rest[i-1]) && rest[i-1] != ':') {
				return CXXABIOld
			}
			rest = after
		}
	}
	return CXXABIUnknown
}

func identByte(b byte) bool {
	return b == '_' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// demangled is a symbol as C++ programmers write it, or unchanged if it is none.
func demangled(name string) string {
	return demangle.Filter(name)
}

// qualifiedName is the demangled name up to its parameters: "c10::detail::torchCheckFail".
func qualifiedName(name string) string {
	text := demangle.Filter(name, demangle.NoParams)
	return text
}

// abiOf collects the evidence of symbols.
type abiOf struct{ old, new int }

func (a *abiOf) add(name string) {
	switch symbolABI(name) {
	case CXXABIOld:
		a.old++
	case CXXABINew:
		a.new++
	}
}

func (a *abiOf) verdict() CXXABI {
	switch {
	case a.old > 0 && a.new > 0:
		return CXXABIMixed
	case a.old > 0:
		return CXXABIOld
	case a.new > 0:
		return CXXABINew
	}
	return CXXABIUnknown
}

// torchABI finds out the ABI of a torch from functions of libc10 that take a string.
func torchABI(s *Snapshot) *bool {
	var abi abiOf
	for i := range s.Libraries {
		l := &s.Libraries[i]
		if !strings.HasPrefix(l.Soname, "libc10.so") {
			continue
		}
		for _, name := range l.names {
			if strings.HasPrefix(name, "_ZN3c10") {
				abi.add(name)
			}
		}
	}
	var isNew bool
	switch {
	case abi.new > abi.old:
		isNew = true
	case abi.old > abi.new:
	default:
		return nil
	}
	return &isNew
}

// abiVariant is the mangled name as the other ABI would spell its strings. Only names in which
// the string is no later back-reference can be turned; "" if it cannot.
func abiVariant(name string) string {
	const cxx11 = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
	switch {
	case strings.Contains(name, cxx11):
		return strings.ReplaceAll(name, cxx11, "Ss")
	case strings.Contains(name, "Ss"):
		return strings.ReplaceAll(name, "Ss", cxx11)
	}
	return ""
}
