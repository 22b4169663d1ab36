package share

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// Objects are compared by what is in them: names of nvcc's temporary files and folders do not
// count, code does.
func TestCompareObjects(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		kilntest.Lacking(t, "cc", "there is no gcc")
	}
	dir := t.TempDir()
	object := func(name, text string, args ...string) string {
		t.Helper()
		source := filepath.Join(dir, name)
		if err := os.WriteFile(source, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), gcc, append(args, "-c", name, "-o", name+".o")...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return source + ".o"
	}
	const code = "int f(void) { return 42; }\n"
	first := object("tmpxft_0000000a_00000000-6_k.c", code)
	for _, test := range []struct {
		name, object string
		want         Verdict
	}{
		{"itself", first, Verdict{Same: true}},
		{"another process number", object("tmpxft_00000123_00000000-6_k.c", code), Verdict{Same: true}},
		{"another file", object("other.c", code), Verdict{Where: "symbols"}},
		{"other code", object("tmpxft_0000000b_00000000-6_k.c", "int f(void) { return 43; }\n"), Verdict{Where: ".text"}},
		{"another function", object("tmpxft_0000000c_00000000-6_k.c", "int g(void) { return 42; }\n"), Verdict{Where: "symbols"}},
	} {
		got, err := CompareObjects(first, test.object, false)
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v, want %+v", test.name, got, err, test.want)
		}
	}
	// Two folders: the identifier of the module differs, and with it the compressed code around it.
	n := 0
	sub := func(id, fatbin string) string {
		n++
		text := "int k_" + id + "_4_s_cu_4536d6f1_x(void) { return 42; }\n__attribute__((section(\".nv_fatbin\"))) const char fatbin[] = \"" + fatbin + "\";\n"
		return object(fmt.Sprintf("tmpxft_%08x_00000000-6_m.c", n), text)
	}
	a := sub("7dc0f47f", "one")
	for object, want := range map[string]Verdict{
		sub("c00a98b1", "one"): {Same: true}, sub("d00a98b1", "two"): {Where: ".nv_fatbin", Inconclusive: true}, sub("7dc0f47f", "two"): {Where: ".nv_fatbin"},
	} {
		if got, err := CompareObjects(a, object, false); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", filepath.Base(object), got, err, want)
		}
	}
	if _, err := CompareObjects(first, filepath.Join(dir, "other.c"), false); err == nil {
		t.Error("a file that is no object was compared")
	}
}
