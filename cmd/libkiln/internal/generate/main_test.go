package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const small = `package main

/*
#include <stdint.h>

enum kiln_status {
	KILN_OK = 0, // fine
};

typedef struct kiln_thing {
	const void *data; // some
	int64_t shape[2];
	char name[8];
} kiln_thing;
*/
import "C"

const abiVersion = 3

// kiln_do does it.
//
//export kiln_do
func kiln_do(in *C.kiln_thing, x unsafe.Pointer, n, m C.int64_t, out *C.char) C.int32_t { return 0 }

func other() {}
`

func TestParse(t *testing.T) {
	a, err := parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	header, python := string(a.header()), string(a.python())
	for _, want := range []string{
		"#define KILN_ABI_VERSION 3\n",
		"\tconst void *data; // some\n",
		"// kiln_do does it.\nint32_t kiln_do(const kiln_thing *in, const void *x, int64_t n, int64_t m, char *out);\n",
	} {
		if !strings.Contains(header, want) {
			t.Errorf("header lacks %q:\n%s", want, header)
		}
	}
	for _, want := range []string{
		"OK = 0\n",
		"        (\"data\", c_void_p),\n        (\"shape\", c_int64 * 2),\n        (\"name\", c_char * 8),\n",
		"lib.kiln_do.argtypes = [POINTER(kiln_thing), c_void_p, c_int64, c_int64, c_char_p]\n",
	} {
		if !strings.Contains(python, want) {
			t.Errorf("Python lacks %q:\n%s", want, python)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"Go type":   strings.Replace(small, "n, m C.int64_t", "n, m int", 1),
		"result":    strings.Replace(small, "C.int32_t {", "C.int64_t {", 1),
		"field":     strings.Replace(small, "int64_t shape[2];", "int64_t rows, cols;", 1),
		"version":   strings.Replace(small, "abiVersion = 3", "abiVersion = three", 1),
		"functions": strings.Replace(small, "//export kiln_do", "", 1),
		"syntax":    small + "}",
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCurrent: the committed files are what the source gives.
func TestCurrent(t *testing.T) {
	text, err := os.ReadFile("../../abi.go")
	if err != nil {
		t.Fatal(err)
	}
	a, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"../../kiln.h": a.header(), "../../../../python/kiln/_abi.py": a.python()} {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is stale, run make generate (-want +got):\n%s", name, diff)
		}
	}
}
