package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// The caller reads the list it asked for, whatever the list in the cache is called.
func TestDepFileFinish(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		name, args, want string
	}{
		{"of the object", "-c a.c -o build/a.o -MD -MF list.d", "build/a.o: a.c x.h\n"},
		{"of a target", "-c a.c -o build/a.o -MD -MF list.d -MT one -MT two", "one two: a.c x.h\n"},
		{"with a space", "-c a.c -o b\u00a0c.o -MD -MF list.d", "b\u00a0c.o: a.c x.h\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := parseCall(GCC, strings.Fields(strings.ReplaceAll(test.args, "\u00a0", "~")))
			c.output = strings.ReplaceAll(c.output, "~", "\u00a0")
			kept := filepath.Join(dir, "kept.d")
			d := c.dependencies(dir, kept)
			if err := os.WriteFile(d.path, []byte("kiln: a.c x.h\n"), 0o666); err != nil {
				t.Fatal(err)
			}
			if err := d.finish(); err != nil {
				t.Fatal(err)
			}
			for path, want := range map[string]string{filepath.Join(dir, "list.d"): test.want, kept: "kiln: a.c x.h\n"} {
				got, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, string(got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", path, diff)
				}
			}
			if err := d.finish(); err == nil {
				t.Error("a list with another target was taken")
			}
		})
	}
}

func TestParseCounters(t *testing.T) {
	for text, want := range map[string]Outcome{
		"# k.cu\ndirect_cache_hit\nlocal_storage_hit\nlocal_storage_read_hit\n":                       Hit,
		"# k.cu\ncache_miss\ndirect_cache_miss\nlocal_storage_miss\nlocal_storage_write\n":            Miss,
		"# k.cu\ndirect_cache_hit\nlocal_storage_miss\nremote_storage_hit\nremote_storage_read_hit\n": Hit,
		"# k.cu\ncalled_for_link\n":                                Bypass,
		"# k.cu\ndirect_cache_miss\nunsupported_compiler_option\n": Bypass,
		"": Bypass,
	} {
		got, why, remote := parseCounters([]byte(text))
		if got != want || remote != strings.Contains(text, "remote_storage_hit") || (why == "") != (want != Bypass) {
			t.Errorf("%q is %s, remote %v, %q; want %s", text, got, remote, why, want)
		}
	}
}

func FuzzParseCounters(f *testing.F) {
	f.Add([]byte("# k.cu\ndirect_cache_hit\nremote_storage_hit\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if result, why, _ := parseCounters(text); (result == Bypass) != (why != "") {
			t.Errorf("%s, %q", result, why)
		}
	})
}
