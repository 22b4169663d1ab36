package main

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit"
)

// read gives the layouts of the probe's types from its debug information.
func read(object string) (map[string]audit.Layout, error) {
	f, err := elf.Open(object)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	names, err := typeNames(data)
	if err != nil {
		return nil, err
	}
	types := reader{data, names}
	out := map[string]audit.Layout{}
	r := data.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			break
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if e.Tag != dwarf.TagTypedef || !strings.HasPrefix(name, "kiln_type_") {
			continue
		}
		to, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok {
			continue
		}
		if to, err = types.plain(to); err != nil {
			return nil, err
		}
		l, err := types.layout(to)
		if err != nil {
			return nil, err
		}
		out[names[to]] = l
	}
	if len(out) == 0 {
		return nil, errors.New("the probe has no types")
	}
	return out, nil
}

// A reader reads the types of a program.
type reader struct {
	data  *dwarf.Data
	names map[dwarf.Offset]string
}

// plain is what a name of a type stands for.
func (t *reader) plain(at dwarf.Offset) (dwarf.Offset, error) {
	for {
		e, _, err := t.entry(at)
		if err != nil {
			return 0, err
		}
		to, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok || e.Tag != dwarf.TagTypedef && e.Tag != dwarf.TagConstType {
			return at, nil
		}
		at = to
	}
}

// entry is one entry with its children.
func (t *reader) entry(at dwarf.Offset) (*dwarf.Entry, []*dwarf.Entry, error) {
	r := t.data.Reader()
	r.Seek(at)
	e, err := r.Next()
	if err != nil || e == nil {
		return nil, nil, fmt.Errorf("debug information at %d: %w", at, errors.Join(err, io.ErrUnexpectedEOF))
	}
	var children []*dwarf.Entry
	for e.Children {
		child, err := r.Next()
		if err != nil {
			return nil, nil, err
		}
		if child == nil || child.Tag == 0 {
			break
		}
		children = append(children, child)
		r.SkipChildren()
	}
	return e, children, nil
}

func (t *reader) layout(at dwarf.Offset) (audit.Layout, error) {
	e, children, err := t.entry(at)
	if err != nil {
		return audit.Layout{}, err
	}
	size, _ := e.Val(dwarf.AttrByteSize).(int64)
	l := audit.Layout{Size: size}
	if declared, _ := e.Val(dwarf.AttrDeclaration).(bool); declared || size == 0 {
		return l, fmt.Errorf("%v is only declared", e.Val(dwarf.AttrName))
	}
	var members, virtual []numbered
	for _, c := range children {
		name, _ := c.Val(dwarf.AttrName).(string)
		switch c.Tag {
		case dwarf.TagEnumerator:
			v, _ := c.Val(dwarf.AttrConstValue).(int64)
			members = append(members, numbered{v, name})
		case dwarf.TagSubprogram:
			slot, ok := c.Val(dwarf.AttrVtableElemLoc).([]byte)
			if ok && len(slot) > 1 {
				virtual = append(virtual, numbered{uleb(slot[1:]), name})
			}
		}
	}
	if e.Tag != dwarf.TagEnumerationType {
		if members, err = t.leaves(at, 0, ""); err != nil {
			return l, err
		}
	}
	l.Members, l.Virtual = texts(members), texts(virtual)
	return l, nil
}

// A numbered is a member with its offset, an enumerator with its value, or a virtual function with
// its place.
type numbered struct {
	at   int64
	text string
}

func texts(list []numbered) []string {
	slices.SortStableFunc(list, func(a, b numbered) int { return cmp.Compare(a.at, b.at) })
	var out []string
	for _, n := range list {
		out = append(out, fmt.Sprintf("%d %s", n.at, n.text))
	}
	return out
}

// leaves are the members of a class and of the classes in it: what a compiler computes addresses
// of. Classes of the standard library are left whole; they are the compiler's business.
func (t *reader) leaves(at dwarf.Offset, base int64, prefix string) ([]numbered, error) {
	_, children, err := t.entry(at)
	if err != nil {
		return nil, err
	}
	var out []numbered
	for _, c := range children {
		if c.Tag != dwarf.TagInheritance && c.Tag != dwarf.TagMember {
			continue
		}
		if external, _ := c.Val(dwarf.AttrExternal).(bool); external {
			continue // static
		}
		to, ok := c.Val(dwarf.AttrType).(dwarf.Offset)
		if !ok {
			continue
		}
		if to, err = t.plain(to); err != nil {
			return nil, err
		}
		offset, _ := c.Val(dwarf.AttrDataMemberLoc).(int64) // 0 in a union
		name, _ := c.Val(dwarf.AttrName).(string)
		name = prefix + name
		if bit, ok := c.Val(dwarf.AttrDataBitOffset).(int64); ok {
			offset = bit / 8
			name = fmt.Sprintf("bit %d %s", bit%8, name)
		}
		inner, _, err := t.entry(to)
		if err != nil {
			return nil, err
		}
		class := inner.Tag == dwarf.TagClassType || inner.Tag == dwarf.TagStructType || inner.Tag == dwarf.TagUnionType
		if class && !strings.HasPrefix(t.names[to], "std::") {
			deeper := prefix
			if c.Tag == dwarf.TagMember && name != prefix {
				deeper = name + "."
			}
			list, err := t.leaves(to, base+offset, deeper)
			if err != nil {
				return nil, err
			}
			out = append(out, list...)
			continue
		}
		kind, err := t.describe(to)
		if err != nil {
			return nil, err
		}
		out = append(out, numbered{base + offset, strings.TrimSpace(kind + " " + name)})
	}
	return out, nil
}

// uleb reads DWARF's variable-length numbers.
func uleb(data []byte) int64 {
	var n int64
	for i, b := range data {
		n |= int64(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			break
		}
	}
	return n
}

// describe is a type in words that do not depend on how its headers are written: what it is and
// how large.
func (t *reader) describe(at dwarf.Offset) (string, error) {
	e, _, err := t.entry(at)
	if err != nil {
		return "", err
	}
	next, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
	size, sized := e.Val(dwarf.AttrByteSize).(int64)
	switch e.Tag {
	case dwarf.TagPointerType, dwarf.TagReferenceType, dwarf.TagRvalueReferenceType, dwarf.TagPtrToMemberType:
		return "pointer", nil
	case dwarf.TagTypedef, dwarf.TagConstType, dwarf.TagVolatileType, dwarf.TagTemplateAlias:
		if ok {
			return t.describe(next)
		}
	case dwarf.TagArrayType:
		inner, err := t.describe(next)
		return "array of " + inner, err
	}
	if sized {
		return fmt.Sprintf("%s(%d)", t.names[at], size), nil
	}
	return t.names[at], nil
}

// typeNames are the names of all types with their namespaces. Entries do not say what they are in:
// that is learned on the way to them.
func typeNames(data *dwarf.Data) (map[dwarf.Offset]string, error) {
	out := map[dwarf.Offset]string{}
	r := data.Reader()
	var around []string
	for {
		e, err := r.Next()
		if err != nil || e == nil {
			return out, err
		}
		if e.Tag == 0 {
			around = around[:len(around)-1]
			continue
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		scope := ""
		switch e.Tag {
		case dwarf.TagNamespace, dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType, dwarf.TagEnumerationType, dwarf.TagBaseType, dwarf.TagUnspecifiedType:
			parts := slices.DeleteFunc(append(slices.Clone(around), name), func(s string) bool { return s == "" })
			out[e.Offset] = strings.Join(parts, "::")
			scope = name
		}
		if e.Children {
			around = append(around, scope)
		}
	}
}
