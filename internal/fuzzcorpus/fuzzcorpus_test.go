package fuzzcorpus_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestRecord(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	for name, input := range map[string]string{
		"a": "go test fuzz v1\nstring(\"x\\n\\xff\")\n[]byte(\"1\")\n",
		"b": "go test fuzz v1\nstring(\"longer text\")\n[]byte(\"\")\n",
		"c": "go test fuzz v1\nstring(\"other\")\n",
		"d": "not an input",
		"e": "go test fuzz v1\nstring(\"" + strings.Repeat("x", 1<<20) + "\")\n[]byte(\"\")\n",
	} {
		if err := os.WriteFile(filepath.Join(cache, name), []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first []byte
	for range 2 { // recording again changes nothing
		if n, err := fuzzcorpus.Record(cache, dir, "FuzzX"); err != nil || n != 2 {
			t.Fatalf("Record = %d, %v, want 2 inputs", n, err)
		}
		packed, err := os.ReadFile(filepath.Join(dir, "testdata", "corpus", "FuzzX.gz"))
		if err != nil || first != nil && string(packed) != string(first) {
			t.Fatalf("the second recording differs (%v)", err)
		}
		first = packed
	}
	got, err := fuzzcorpus.Inputs(dir, "FuzzX")
	if err != nil {
		t.Fatal(err)
	}
	want := [][]any{{"x\n\xff", []byte("1")}, {"longer text", []byte("")}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTypes(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	input := "go test fuzz v1\nbool(true)\nint(-3)\nint64(4)\nuint16(6)\nuint32(7)\nuint(5)\nuint64(18446744073709551615)\nbyte('\\xff')\nbyte('a')\n"
	if err := os.WriteFile(filepath.Join(cache, "a"), []byte(input), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := fuzzcorpus.Record(cache, dir, "FuzzX"); err != nil || n != 1 {
		t.Fatalf("Record = %d, %v", n, err)
	}
	got, err := fuzzcorpus.Inputs(dir, "FuzzX")
	if err != nil {
		t.Fatal(err)
	}
	want := [][]any{{true, -3, int64(4), uint16(6), uint32(7), uint(5), uint64(1<<64 - 1), byte(0xff), byte('a')}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNothingRecorded(t *testing.T) {
	if n, err := fuzzcorpus.Record(filepath.Join(t.TempDir(), "absent"), t.TempDir(), "FuzzX"); n != 0 || err != nil {
		t.Errorf("Record = %d, %v", n, err)
	}
	if got, err := fuzzcorpus.Inputs(t.TempDir(), "FuzzX"); len(got) != 0 || err != nil {
		t.Errorf("Inputs = %v, %v", got, err)
	}
}
