package audit

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/wheel"
)

//go:embed snapshots/layouts.json
var layoutTable []byte

// A Layout is how a compiler lays out one class, or the values of one enumeration.
type Layout struct {
	Size int64 `json:"size"`
	// Members are bases, members or enumerators, each with its offset or value first.
	Members []string `json:"members,omitempty"`
	// Virtual are the virtual functions that the class declares, with their places in the table.
	Virtual []string `json:"virtual,omitempty"`
}

// Layouts are the layouts of torch's types by release, made by
// `go run ./audit/internal/layouts/generate`.
type Layouts struct {
	// Types has for every type its different layouts, oldest first.
	Types map[string][]ReleasedLayout `json:"types"`
}

// A ReleasedLayout is a layout with the releases that have it, oldest first.
type ReleasedLayout struct {
	Releases []string `json:"releases"`
	Layout
}

// Set records all types of a release in place of what was known of it.
func (l *Layouts) Set(release string, types map[string]Layout) {
	if l.Types == nil {
		l.Types = map[string][]ReleasedLayout{}
	}
	for name, list := range l.Types {
		for i := range list {
			list[i].Releases = slices.DeleteFunc(list[i].Releases, func(r string) bool { return r == release })
		}
		l.Types[name] = slices.DeleteFunc(list, func(r ReleasedLayout) bool { return len(r.Releases) == 0 })
	}
	older := func(a, b string) int {
		va, _ := wheel.ParseVersion(a) // what is not a version comes first
		vb, _ := wheel.ParseVersion(b)
		return va.Compare(vb)
	}
	for name, layout := range types {
		list := l.Types[name]
		i := slices.IndexFunc(list, func(r ReleasedLayout) bool { return reflect.DeepEqual(r.Layout, layout) })
		if i < 0 {
			list = append(list, ReleasedLayout{Layout: layout})
			i = len(list) - 1
		}
		list[i].Releases = append(list[i].Releases, release)
		slices.SortFunc(list[i].Releases, older)
		slices.SortFunc(list, func(a, b ReleasedLayout) int { return older(a.Releases[0], b.Releases[0]) })
		l.Types[name] = list
	}
}

// of is the layout of a type in a release, or nil.
func (l *Layouts) of(name, release string) *Layout {
	for i := range l.Types[name] {
		if r := &l.Types[name][i]; slices.Contains(r.Releases, release) {
			return &r.Layout
		}
	}
	return nil
}

// inlined are the types that every extension with a tensor builds into itself: inline code counts
// references, reads sizes and data pointers, and compares types and devices. Others count for
// extensions that name them.
var inlined = []string{
	"c10::intrusive_ptr_target", "c10::TensorImpl", "c10::StorageImpl", "c10::Storage", "at::TensorBase", "at::Tensor", "c10::TensorOptions",
	"c10::ArrayRef<long int>", "c10::SymInt", "c10::Device", "c10::DataPtr", "c10::impl::SizesAndStrides", "c10::DispatchKeySet",
	"caffe2::TypeMeta", "c10::ScalarType", "c10::DeviceType", "c10::Layout", "c10::MemoryFormat",
}

// differs is the first type that code compiled for one release reads wrongly in another, with what
// is different; "" if there is none, or if one of the releases is not on record. symbols are the
// names that the code takes from torch.
func (l *Layouts) differs(from, to string, symbols []string) (name, why string) {
	names := slices.Clone(inlined)
	for _, other := range slices.Sorted(maps.Keys(l.Types)) {
		// In a mangled name each part has its length before it: N5torch7LibraryE.
		part := other[strings.LastIndexByte(other, ':')+1:]
		part = strconv.Itoa(len(part)) + part
		if !slices.Contains(inlined, other) && slices.ContainsFunc(symbols, func(s string) bool { return strings.Contains(s, part) }) {
			names = append(names, other)
		}
	}
	for _, name := range names {
		old, now := l.of(name, from), l.of(name, to)
		if old == nil || now == nil {
			continue
		}
		if why := old.changed(now); why != "" {
			return name, why
		}
	}
	return "", ""
}

// Alike reports whether two releases are on record and lay out the classes alike that every
// extension with a tensor inlines.
func (l *Layouts) Alike(from, to string) bool {
	for _, name := range inlined {
		old, now := l.of(name, from), l.of(name, to)
		switch {
		case old == nil || now == nil:
			if name == "c10::TensorImpl" { // of a release on record this one is known
				return false
			}
		case old.changed(now) != "":
			return false
		}
	}
	return true
}

// changed says what code that was compiled for a layout finds elsewhere in another one. What came
// after the end of members, enumerators and virtual functions does it no harm.
func (l *Layout) changed(now *Layout) string {
	if l.Size != now.Size {
		return fmt.Sprintf("%d bytes became %d", l.Size, now.Size)
	}
	// The name of a member, its last word, may change.
	place := func(s string) string {
		if n := strings.Count(s, " "); n > 1 {
			return s[:strings.LastIndexByte(s, ' ')]
		}
		return s
	}
	has := func(list []string, what string) bool {
		return slices.ContainsFunc(list, func(s string) bool { return place(s) == place(what) })
	}
	for _, m := range l.Members {
		value, name, _ := strings.Cut(m, " ")
		if strings.Contains(name, " ") {
			if !has(now.Members, m) {
				return "no " + place(m)
			}
			continue
		}
		// An enumerator may get another name, and the marks at the end of an enumeration move with
		// every addition.
		if name == "Undefined" || strings.HasPrefix(name, "Num") {
			continue
		}
		for _, n := range now.Members {
			if other, same, _ := strings.Cut(n, " "); same == name && other != value {
				return fmt.Sprintf("%s = %s became %s", name, value, other)
			}
		}
	}
	for _, f := range l.Virtual {
		if !slices.Contains(now.Virtual, f) {
			return "no virtual function " + f
		}
	}
	return ""
}

// judgeLayouts takes back what the names alone allowed: releases that lay out a class differently
// from the torch that the wheel was built for.
func (c *checker) judgeLayouts(symbols []string) {
	built := c.opts.BuiltFor
	if built == "" && c.isWheel {
		built = c.namedTorch()
	}
	built = publicOf(built)
	if slices.IndexFunc(symbols, func(s string) bool { return !stableTorchName(s) }) < 0 {
		return
	}
	for i := range c.report.WorksWith {
		v := &c.report.WorksWith[i]
		if !v.OK {
			continue
		}
		if name, why := BuiltinLayouts().differs(built, publicOf(v.Torch), symbols); name != "" {
			v.OK, v.Missing = false, 1
			v.Layout = name
			v.Reason = fmt.Sprintf("has another layout of %s than %s: %s", name, built, why)
		}
	}
}

// BuiltinLayouts are the layouts of the releases on record.
var BuiltinLayouts = sync.OnceValue(func() *Layouts {
	l := new(Layouts)
	if err := json.Unmarshal(layoutTable, l); err != nil {
		panic(fmt.Errorf("builtin layouts: %w", err)) // they are in the program
	}
	return l
})
