package share

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/matrix"
)

// LearnUnits finds out on which axes the compiles of packages depend: first from what was read,
// then from the keys, which have the last word where rows were built that tell.
func LearnUnits(all []*calls.Inputs) map[string][]matrix.UnitClass {
	byPackage := map[string][]*calls.Inputs{}
	for _, in := range all {
		byPackage[in.Package] = append(byPackage[in.Package], in)
	}
	out := map[string][]matrix.UnitClass{}
	for name, rows := range byPackage {
		if classes := unitClasses(newestVersion(rows)); len(classes) > 0 {
			out[name] = classes
		}
	}
	return out
}

// newestVersion returns the rows of the version that was built last: other versions have other
// files.
func newestVersion(rows []*calls.Inputs) []*calls.Inputs {
	newest := slices.MaxFunc(rows, func(a, b *calls.Inputs) int { return a.Made.Compare(b.Made) })
	var out []*calls.Inputs
	for _, in := range rows {
		if in.Axes["version"] == newest.Axes["version"] {
			out = append(out, in)
		}
	}
	return out
}

// compiled is one file in one row.
type compiled struct {
	in   *calls.Inputs
	unit *calls.Unit
}

func unitClasses(rows []*calls.Inputs) []matrix.UnitClass {
	files := map[string][]compiled{}
	for _, in := range rows {
		seen := map[string]int{}
		for i := range in.Calls {
			u := &in.Calls[i]
			if u.Result == launcher.Failed {
				continue
			}
			name := u.Source
			if seen[name]++; seen[name] > 1 { // compiled twice, with other arguments
				name = fmt.Sprintf("%s %d", name, seen[name])
			}
			files[name] = append(files[name], compiled{in, u})
		}
	}
	type class struct {
		name, axes, toolkits string
	}
	counts := map[class]int{}
	for _, calls := range files {
		var toolkits []string
		for _, c := range calls {
			toolkits = append(toolkits, toolkitOf(c.in.Axes))
		}
		slices.Sort(toolkits)
		toolkits = slices.Compact(toolkits)
		axes := dependsOn(calls)
		name := "plain"
		switch {
		case slices.Contains(axes, "id"):
			name = "not shared"
		case slices.Contains(axes, "python"):
			name = "bindings"
		case calls[0].unit.Tool == "nvcc" || calls[0].unit.Tool == "hipcc":
			name = "kernels"
		}
		if len(toolkits) == len(allToolkits(rows)) {
			toolkits = nil
		}
		counts[class{name, strings.Join(axes, ","), strings.Join(toolkits, ",")}]++
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b class) int {
		return strings.Compare(a.name+" "+a.axes+" "+a.toolkits, b.name+" "+b.axes+" "+b.toolkits)
	})
	var out []matrix.UnitClass
	for _, k := range keys {
		c := matrix.UnitClass{Name: k.name, Count: counts[k], Axes: strings.Split(k.axes, ",")}
		if k.toolkits != "" {
			c.Toolkits = strings.Split(k.toolkits, ",")
		}
		out = append(out, c)
	}
	return out
}

func toolkitOf(axes map[string]string) string {
	switch {
	case axes["cuda"] != "":
		return "cuda"
	case axes["rocm"] != "":
		return "rocm"
	}
	return "none"
}

func allToolkits(rows []*calls.Inputs) map[string]bool {
	all := map[string]bool{}
	for _, in := range rows {
		all[toolkitOf(in.Axes)] = true
	}
	return all
}

// dependsOn returns the axes that decide about the result of a file, sorted.
func dependsOn(calls []compiled) []string {
	axes := map[string]bool{"os": true}
	for _, c := range calls {
		if c.unit.Key == "" {
			return []string{"id"} // it went past the cache: nothing of it is shared
		}
		maps.Copy(axes, readAxes(c))
	}
	for i, a := range calls {
		for _, b := range calls[:i] {
			if a.unit.Key == b.unit.Key {
				for _, axis := range differing(a.in, b.in) {
					delete(axes, axis)
				}
			}
		}
	}
	for i, a := range calls {
		for _, b := range calls[:i] {
			differ := differing(a.in, b.in)
			if a.unit.Key != b.unit.Key && !slices.ContainsFunc(differ, func(axis string) bool { return axes[axis] }) {
				for _, axis := range differ {
					axes[axis] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(axes))
}

func differing(a, b *calls.Inputs) []string {
	var out []string
	for axis, value := range a.Axes {
		if b.Axes[axis] != value && axis != "version" {
			out = append(out, axis)
		}
	}
	slices.Sort(out)
	return out
}

// readAxes guesses from the headers that were read, and the compiler. An axis that the user made
// may do anything.
func readAxes(c compiled) map[string]bool {
	axes := map[string]bool{}
	for axis := range c.in.Axes {
		switch axis {
		case "version", "os", "platform", "python", "cuda", "rocm", "torch", "arch":
		default:
			axes[axis] = true
		}
	}
	switch c.unit.Tool {
	case "nvcc":
		axes["cuda"], axes["arch"] = true, true
	case "hipcc":
		axes["rocm"], axes["arch"] = true, true
	}
	for _, i := range c.unit.Read {
		if i < 0 || i >= len(c.in.Files) {
			continue
		}
		file := c.in.Files[i]
		switch path.Base(file) {
		case "Python.h":
			axes["python"] = true
		case "cuda.h", "cuda_runtime_api.h":
			axes["cuda"] = true
		case "hip_runtime_api.h":
			axes["rocm"] = true
		}
		if strings.Contains(file, "/torch/include/") {
			axes["torch"] = true
		}
	}
	return axes
}
