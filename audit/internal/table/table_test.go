package table_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/audit/internal/table"
)

// filter keeps the names that are wanted.
func filter(releases []table.Release, wanted []string) []table.Release {
	var out []table.Release
	for _, r := range releases {
		r.Names = map[string][]string{}
		out = append(out, r)
	}
	for i, r := range releases {
		for file, names := range r.Names {
			for _, name := range names {
				if _, ok := slices.BinarySearch(wanted, name); ok {
					out[i].Names[file] = append(out[i].Names[file], name)
				}
			}
		}
	}
	return out
}

// TestRoundTrip: whatever releases have, all of them, some of them, and some of their names come
// out as they went in; and a table that is cut off is an error.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringMatching(`(_ZN2at|_ZN3c10)?[a-c]{0,4}`)
		var releases []table.Release
		for i := range rapid.IntRange(1, 20).Draw(rt, "releases") {
			r := table.Release{Label: fmt.Sprint("torch-", i), Description: []byte(name.Draw(rt, "description")), Names: map[string][]string{}}
			for file := range rapid.IntRange(0, 3).Draw(rt, "files") {
				names := rapid.SliceOfNDistinct(name, 1, 10, rapid.ID).Draw(rt, "names")
				slices.Sort(names)
				r.Names[fmt.Sprint("lib", file)] = names
			}
			releases = append(releases, r)
		}
		data, err := table.Encode(releases)
		if err != nil {
			rt.Fatal(err)
		}
		tab, err := table.Open(string(data))
		if err != nil {
			rt.Fatal(err)
		}
		var which []int
		var some []table.Release
		for i := range releases {
			if rapid.Bool().Draw(rt, "chosen") {
				which, some = append(which, i), append(some, releases[i])
			}
		}
		got, err := tab.Read(which, nil)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(some, got, equateEmpty); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
		wanted := rapid.SliceOfDistinct(name, rapid.ID).Draw(rt, "wanted")
		slices.Sort(wanted)
		if got, err = tab.Read(which, wanted); err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(filter(some, wanted), got, equateEmpty); diff != "" {
			rt.Fatalf("wanted %q (-want +got):\n%s", wanted, diff)
		}
		cut := data[:rapid.IntRange(0, len(data)-1).Draw(rt, "cut")]
		if tab, err := table.Open(string(cut)); err == nil {
			if _, err := tab.Read(which, nil); err == nil {
				rt.Fatalf("%d of %d bytes are a table", len(cut), len(data))
			}
		}
	})
}

var equateEmpty = cmp.Transformer("empty", func(list []table.Release) map[string]table.Release {
	out := map[string]table.Release{}
	for _, r := range list {
		r.Description = append([]byte{}, r.Description...)
		out[r.Label] = r
	}
	return out
})

// TestBlocks: names are found in all blocks of a table that has several.
func TestBlocks(t *testing.T) {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("name%06d", i)
	}
	all := []table.Release{{Label: "one", Description: []byte("{}"), Names: map[string][]string{"lib": names}}}
	data, err := table.Encode(all)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := table.Open(string(data))
	if err != nil {
		t.Fatal(err)
	}
	for _, wanted := range [][]string{nil, {}, {"a", "name000000", "name032768", "name099999", "z"}, {"name070000"}, {"name0700001"}} {
		want := all
		if wanted != nil {
			want = filter(all, wanted)
		}
		got, err := tab.Read([]int{0}, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("wanted %q (-want +got):\n%s", wanted, diff)
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	for want, r := range map[string]table.Release{
		"not a line": {Label: "a\nb"},
		"not sorted": {Label: "a", Names: map[string][]string{"lib": {"b", "a"}}},
		"lib of a":   {Label: "a", Names: map[string][]string{"lib": {"a", "a"}}},
	} {
		if _, err := table.Encode([]table.Release{r}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
}
