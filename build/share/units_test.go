package share

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/matrix"
)

func rowCalls(made int, axes string, units ...calls.Unit) *calls.Inputs {
	in := &calls.Inputs{
		Package: "demo", Made: time.Unix(int64(made), 0), Axes: map[string]string{"version": "1.0"},
		Files: []string{"/usr/include/python3.13/Python.h", "/kiln/work/share/inc/torch/torch/include/ATen/ATen.h", "/usr/include/stdio.h"}, Digests: []string{"1", "2", "3"},
	}
	for pair := range strings.FieldsSeq(axes) {
		k, v, _ := strings.Cut(pair, "=")
		in.Axes[k] = v
	}
	in.Calls = units
	return in
}

func call(source, tool, key string, read ...int) calls.Unit {
	return calls.Unit{Source: source, Tool: tool, Key: key, Result: launcher.Miss, Read: read}
}

func TestLearnUnits(t *testing.T) {
	const (
		binding, kernel, plain = "b.cpp", "k.cu", "p.cpp"
	)
	base := "os=debian-13 cuda=12.4 arch=8.0 torch=2.6.0 python="
	for _, test := range []struct {
		name string
		rows []*calls.Inputs
		want []matrix.UnitClass
	}{
		{
			"one row: from what was read",
			[]*calls.Inputs{rowCalls(1, base+"3.13", call(binding, "c++", "b1", 0, 1), call(kernel, "nvcc", "k1", 1), call(plain, "c++", "p1", 2))},
			[]matrix.UnitClass{
				{Name: "bindings", Count: 1, Axes: []string{"os", "python", "torch"}},
				{Name: "kernels", Count: 1, Axes: []string{"arch", "cuda", "os", "torch"}},
				{Name: "plain", Count: 1, Axes: []string{"os"}},
			},
		},
		{
			"another torch with the same key: the kernel does not depend on it",
			[]*calls.Inputs{
				rowCalls(1, base+"3.13", call(kernel, "nvcc", "k1", 1)),
				rowCalls(2, strings.Replace(base, "2.6.0", "2.5.1", 1)+"3.13", call(kernel, "nvcc", "k1", 1)),
			},
			[]matrix.UnitClass{{Name: "kernels", Count: 1, Axes: []string{"arch", "cuda", "os"}}},
		},
		{
			"another Python with another key: it does, whatever was read",
			[]*calls.Inputs{rowCalls(1, base+"3.13", call(plain, "c++", "p1", 2)), rowCalls(2, base+"3.11", call(plain, "c++", "p2", 2))},
			[]matrix.UnitClass{{Name: "bindings", Count: 1, Axes: []string{"os", "python"}}},
		},
		{
			"past the cache",
			[]*calls.Inputs{rowCalls(1, base+"3.13", calls.Unit{Source: kernel, Tool: "nvcc", Result: launcher.Bypass})},
			[]matrix.UnitClass{{Name: "not shared", Count: 1, Axes: []string{"id"}}},
		},
		{
			"an axis of the user's may do anything, until it is seen that it does not",
			[]*calls.Inputs{rowCalls(1, "os=a flavor=x", call(plain, "c++", "p1", 2), call("q.cpp", "c++", "q", 2)), rowCalls(2, "os=a flavor=y", call(plain, "c++", "p2", 2), call("q.cpp", "c++", "q", 2))},
			[]matrix.UnitClass{{Name: "plain", Count: 1, Axes: []string{"flavor", "os"}}, {Name: "plain", Count: 1, Axes: []string{"os"}}},
		},
		{
			"rows without CUDA have no kernels",
			[]*calls.Inputs{rowCalls(1, base+"3.13", call(kernel, "nvcc", "k1"), call(plain, "c++", "p1")), rowCalls(1, "os=debian-13 python=3.13", call(plain, "c++", "p1"))},
			[]matrix.UnitClass{
				{Name: "kernels", Count: 1, Axes: []string{"arch", "cuda", "os"}, Toolkits: []string{"cuda"}},
				{Name: "plain", Count: 1, Axes: []string{"os"}},
			},
		},
		{
			"only the version that was built last counts",
			[]*calls.Inputs{rowCalls(9, base+"3.13", call(plain, "c++", "p1")), rowCalls(1, base+"3.13 version=0.9", call(plain, "c++", "p0"), call("old.cpp", "c++", "o"))},
			[]matrix.UnitClass{{Name: "plain", Count: 1, Axes: []string{"os"}}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := LearnUnits(test.rows)["demo"]
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
