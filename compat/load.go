package compat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/diag"
)

// Format is the value of "format" in a table and in an override file.
const Format = "kiln-compat/1"

const (
	maxFileBytes  = 4 << 20
	maxDepth      = 16
	maxFileErrors = 20
)

// A LoadError is one fault of a table or override file.
type LoadError struct {
	Line, Column int    // 1-based; Column counts bytes
	Key          string // the path of the value, such as "torch.2.6.cuda.12.4"
	Msg          string
	Suggestion   string // what was probably meant, or ""
}

func (e *LoadError) Error() string {
	s := fmt.Sprintf("%d:%d: ", e.Line, e.Column)
	if e.Key != "" {
		s += e.Key + ": "
	}
	s += e.Msg
	if e.Suggestion != "" {
		s += fmt.Sprintf(", did you mean %q?", e.Suggestion)
	}
	return s
}

// Load reads a whole table. It is strict: unknown keys, repeated keys, values of
// the wrong form and rows without a confidence are refused. The error joins one
// [*LoadError] per fault, at most twenty.
func Load(r io.Reader) (*Table, error) {
	root, err := readTree(r)
	if err != nil {
		return nil, fmt.Errorf("compatibility table: %w", err)
	}
	t, err := build(root)
	if err != nil {
		return nil, fmt.Errorf("compatibility table: %w", err)
	}
	return t, nil
}

// An Override is a patch for a [Table]; see [LoadOverride].
type Override struct{ root *node }

// LoadOverride reads an override file. It has the form of a table with
// "override": true added, and everything but "format" may be left out. It
// is applied like a JSON merge patch (RFC 7396): maps merge by key, any other
// value replaces what was there, null removes it. So
//
//	{"format": "kiln-compat/1", "override": true,
//	 "cuda": {"13.5": {"confidence": "documented", "published": ["13.5.0"]}},
//	 "torch": {"2.14": {"cuda": {"13.4": {"confidence": "verified", "channel": "extra"}}}}}
//
// adds a CUDA series and one build of torch 2.14. Syntax is checked here,
// meaning by [Table.Merge].
func LoadOverride(r io.Reader) (*Override, error) {
	root, err := readTree(r)
	if err != nil {
		return nil, fmt.Errorf("compatibility override: %w", err)
	}
	d := &decoder{}
	if f := root.get("format"); f == nil || f.kind != text || f.str != Format {
		d.fail(cmpNode(f, root), "format", "want %q", Format)
	}
	if o := root.get("override"); o == nil || o.kind != boolean || o.str != "true" {
		d.fail(cmpNode(o, root), "override", "want true: this file must say that it is an override")
	}
	if err := d.err(); err != nil {
		return nil, fmt.Errorf("compatibility override: %w", err)
	}
	return &Override{root}, nil
}

// A Change is one entry that an override added, replaced or removed.
type Change struct {
	Section string // "torch", "cuda", "os", …
	Key     string // "2.14", "13.5", "ubuntu-26.04", …
	Action  string // "added", "changed" or "removed"
}

func (c Change) String() string { return c.Action + " " + c.Section + " " + c.Key }

// Merge returns a new table with the override applied and leaves t as it is.
// [Table.Changes] of the result lists what all overrides so far did.
// Positions in the error are those of the override file where it is at fault.
func (t *Table) Merge(o *Override) (*Table, error) {
	patch := *o.root
	patch.fields = slices.DeleteFunc(slices.Clone(patch.fields), func(f field) bool { return f.key == "override" })
	merged := mergeNodes(t.root, &patch)
	out, err := build(merged)
	if err != nil {
		return nil, fmt.Errorf("compatibility override: %w", err)
	}
	out.changes = slices.Clone(t.changes)
	for _, sec := range patch.fields {
		if sec.key == "source" {
			continue // remarks
		}
		for _, f := range sec.val.fields {
			c := Change{Section: sec.key, Key: f.key, Action: "changed"}
			switch old := t.root.get(sec.key); {
			case f.val.kind == null:
				c.Action = "removed"
			case old == nil || old.get(f.key) == nil:
				c.Action = "added"
			}
			out.changes = append(out.changes, c)
		}
	}
	return out, nil
}

// mergeNodes applies an RFC 7396 patch; neither argument is changed.
func mergeNodes(base, patch *node) *node {
	if patch.kind != object || base == nil || base.kind != object {
		if patch.kind != object {
			return patch
		}
		base = &node{kind: object, src: patch.src, off: patch.off}
	}
	out := *base
	out.fields = slices.Clone(base.fields)
	for _, p := range patch.fields {
		at := slices.IndexFunc(out.fields, func(f field) bool { return f.key == p.key })
		switch {
		case p.val.kind == null && at >= 0:
			out.fields = slices.Delete(out.fields, at, at+1)
		case p.val.kind == null:
		case at >= 0:
			out.fields[at] = field{p.key, p.off, p.src, mergeNodes(out.fields[at].val, p.val)}
		default:
			out.fields = append(out.fields, field{p.key, p.off, p.src, mergeNodes(nil, p.val)})
		}
	}
	return &out
}

// The tree keeps the place of every value, so that errors about meaning can
// point at it; encoding/json forgets it.

type nodeKind byte

const (
	null nodeKind = iota
	boolean
	number
	text
	array
	object
)

func (k nodeKind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "a map"}[k]
}

type node struct {
	kind   nodeKind
	src    *[]byte // the file it came from
	off    int
	str    string  // of boolean, number and text
	items  []*node // of array
	fields []field // of object, in file order
}

type field struct {
	key string
	off int
	src *[]byte
	val *node
}

func (n *node) get(key string) *node {
	for _, f := range n.fields {
		if f.key == key {
			return f.val
		}
	}
	return nil
}

func cmpNode(n, fallback *node) *node {
	if n != nil {
		return n
	}
	return fallback
}

// position turns an offset into line and column.
func position(src []byte, off int) (line, column int) {
	head := src[:min(off, len(src))]
	return 1 + bytes.Count(head, []byte("\n")), len(head) - bytes.LastIndexByte(head, '\n')
}

func errorAt(src []byte, off int, key, format string, args ...any) *LoadError {
	line, col := position(src, off)
	return &LoadError{Line: line, Column: col, Key: key, Msg: fmt.Sprintf(format, args...)}
}

// readTree parses one JSON object.
func readTree(r io.Reader) (*node, error) {
	src, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(src) > maxFileBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxFileBytes)
	}
	p := &parser{src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	p.dec.UseNumber()
	root, err := p.value(0)
	if err == nil && root.kind != object {
		err = errorAt(src, root.off, "", "want a map, found %s", root.kind)
	}
	if err == nil {
		if off := p.next(); off < len(src) {
			err = errorAt(src, off, "", "text after the end of the table")
		}
	}
	return root, err
}

type parser struct {
	src []byte
	dec *json.Decoder
}

// next is the offset of the token that Token will return.
func (p *parser) next() int {
	off := int(p.dec.InputOffset())
	for off < len(p.src) && strings.IndexByte(" \t\r\n,:", p.src[off]) >= 0 {
		off++
	}
	return off
}

func (p *parser) token() (json.Token, int, error) {
	off := p.next()
	tok, err := p.dec.Token()
	if err == nil {
		return tok, off, nil
	}
	msg := err.Error()
	if syn, ok := errors.AsType[*json.SyntaxError](err); ok {
		off = max(off, int(syn.Offset)-1)
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		msg, off = "the file ends too early", len(p.src)
	}
	return nil, 0, errorAt(p.src, off, "", "%s", msg)
}

func (p *parser) value(depth int) (*node, error) {
	tok, off, err := p.token()
	if err != nil {
		return nil, err
	}
	n := &node{src: &p.src, off: off}
	switch v := tok.(type) {
	case nil:
		n.kind = null
	case bool:
		n.kind, n.str = boolean, strconv.FormatBool(v)
	case json.Number:
		n.kind, n.str = number, v.String()
	case string:
		n.kind, n.str = text, v
	case json.Delim:
		if depth == maxDepth {
			return nil, errorAt(p.src, off, "", "nested more than %d deep", maxDepth)
		}
		n.kind = array
		if v == '{' {
			n.kind = object
		}
		seen := map[string]bool{}
		for p.dec.More() {
			if n.kind == array {
				item, err := p.value(depth + 1)
				if err != nil {
					return nil, err
				}
				n.items = append(n.items, item)
				continue
			}
			key, off, err := p.token()
			if err != nil {
				return nil, err
			}
			f := field{key: key.(string), off: off, src: &p.src}
			if seen[f.key] {
				return nil, errorAt(p.src, off, "", "key %q is there twice", clip(f.key))
			}
			seen[f.key] = true
			if f.val, err = p.value(depth + 1); err != nil {
				return nil, err
			}
			n.fields = append(n.fields, f)
		}
		if _, _, err := p.token(); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// A decoder turns nodes into rows and collects every fault.
type decoder struct{ errs []error }

func (d *decoder) err() error { return errors.Join(d.errs...) }

func (d *decoder) fail(n *node, key, format string, args ...any) {
	d.add(errorAt(*n.src, n.off, key, format, args...))
}

func (d *decoder) add(e *LoadError) {
	if len(d.errs) < maxFileErrors {
		d.errs = append(d.errs, e)
	}
}

func (d *decoder) want(n *node, key string, k nodeKind) bool {
	if n.kind != k {
		d.fail(n, key, "want %s, found %s", k, n.kind)
		return false
	}
	return true
}

// keys decodes a record: each field by its function, all others refused.
type keys map[string]func(n *node, key string)

func (d *decoder) record(n *node, key string, known keys, required ...string) {
	if !d.want(n, key, object) {
		return
	}
	for _, f := range n.fields {
		path := join(key, f.key)
		if read, ok := known[f.key]; ok {
			read(f.val, path)
			continue
		}
		names := make([]string, 0, len(known))
		for k := range known {
			names = append(names, k)
		}
		slices.Sort(names)
		e := errorAt(*f.src, f.off, path, "unknown key %q", clip(f.key))
		e.Suggestion = diag.Suggest(f.key, names)
		d.add(e)
	}
	for _, k := range required {
		if n.get(k) == nil {
			d.fail(n, join(key, k), "missing")
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return clip(key)
	}
	return path + "." + clip(key)
}

// each decodes a map from keys that parse turns into K.
func each[K comparable](d *decoder, n *node, key string, parse func(string) (K, error), row func(K, *node, string)) {
	if !d.want(n, key, object) {
		return
	}
	for _, f := range n.fields {
		k, err := parse(f.key)
		if err != nil {
			d.add(errorAt(*f.src, f.off, join(key, f.key), "%s", err))
			continue
		}
		row(k, f.val, join(key, f.key))
	}
}

// value reads a string with parse into dst.
func value[T any](d *decoder, dst *T, parse func(string) (T, error)) func(*node, string) {
	return func(n *node, key string) {
		if !d.want(n, key, text) {
			return
		}
		v, err := parse(n.str)
		if err != nil {
			d.fail(n, key, "%s", err)
			return
		}
		*dst = v
	}
}

// list reads a list of strings with parse into dst.
func list[T any](d *decoder, dst *[]T, parse func(string) (T, error)) func(*node, string) {
	return func(n *node, key string) {
		if !d.want(n, key, array) {
			return
		}
		for i, item := range n.items {
			var v T
			value(d, &v, parse)(item, fmt.Sprintf("%s[%d]", key, i))
			*dst = append(*dst, v)
		}
	}
}

func (d *decoder) flag(dst *bool) func(*node, string) {
	return func(n *node, key string) {
		if d.want(n, key, boolean) {
			*dst = n.str == "true"
		}
	}
}

func (d *decoder) integer(dst *int) func(*node, string) {
	return func(n *node, key string) {
		if !d.want(n, key, number) {
			return
		}
		v, err := strconv.Atoi(n.str)
		if err != nil || v < 0 || v > 1e6 {
			d.fail(n, key, "want a small whole number, found %s", clip(n.str))
			return
		}
		*dst = v
	}
}

func (d *decoder) bounds(dst *[2]int) func(*node, string) {
	return func(n *node, key string) {
		if !d.want(n, key, array) {
			return
		}
		if len(n.items) != 2 {
			d.fail(n, key, "want [lowest, highest]")
			return
		}
		for i := range dst {
			d.integer(&dst[i])(n.items[i], fmt.Sprintf("%s[%d]", key, i))
		}
		if dst[0] > dst[1] {
			d.fail(n, key, "lowest %d is above highest %d", dst[0], dst[1])
		}
	}
}

func anyText(s string) (string, error) { return s, nil }

func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if slices.Contains(words, s) {
			return s, nil
		}
		return "", fmt.Errorf("%q is none of %s", clip(s), strings.Join(words, ", "))
	}
}

func parseConfidence(s string) (Confidence, error) {
	w, err := oneOf(string(Verified), string(Documented), string(Inferred))(s)
	return Confidence(w), err
}

func parseSystem(s string) (string, error) { return oneOf(systems...)(s) }

// parseSeries reads the "12.8" that a row is keyed by.
func parseSeries(s string) (release, error) {
	r, err := parseRelease(s)
	if err == nil && r.n != 2 {
		err = fmt.Errorf("%q is not a series such as 12.8", clip(s))
	}
	return r, err
}

// memberOf reads versions and insists that they belong to a series.
func memberOf(series release) func(string) (release, error) {
	return func(s string) (release, error) {
		r, err := parseRelease(s)
		if err == nil && (r.n != 3 || r.series() != series) {
			err = fmt.Errorf("%q is not a version of %s with three parts", clip(s), series)
		}
		return r, err
	}
}

func parseDate(s string) (string, error) {
	if _, err := time.Parse(time.DateOnly, s); err != nil {
		return "", fmt.Errorf("%q is not a date such as 2026-11-15", clip(s))
	}
	return s, nil
}

// build decodes a tree into a table.
func build(root *node) (*Table, error) {
	d := &decoder{}
	t := &Table{
		root:    root,
		torch:   map[release]*torchRow{},
		cuda:    map[release]*cudaRow{},
		drivers: map[int]driverRow{},
		kits:    map[string]where{},
		os:      map[string]Platform{},
		gpus:    map[CC]GPU{},
		gfx:     map[string]Confidence{},
		rocm:    map[release]gfxRow{},
	}
	var format string
	d.record(root, "", keys{
		"format": value(d, &format, oneOf(Format)),
		"date":   value(d, &t.date, parseDate),
		"source": func(n *node, key string) {
			each(d, n, key, anyText, func(_ string, n *node, key string) { d.want(n, key, text) })
		},
		"torch": func(n *node, key string) {
			each(d, n, key, parseSeries, func(k release, n *node, key string) { t.torch[k] = d.torchRow(k, n, key) })
		},
		"cuda": func(n *node, key string) {
			each(d, n, key, parseSeries, func(k release, n *node, key string) { t.cuda[k] = d.cudaRow(k, n, key) })
		},
		"driver_minimum": func(n *node, key string) {
			each(d, n, key, parseRelease, func(k release, n *node, key string) {
				if k.n != 1 {
					d.fail(n, key, "want a CUDA major such as 12")
				}
				var r driverRow
				d.record(n, key, keys{
					"confidence": value(d, &r.conf, parseConfidence),
					"linux":      value(d, &r.linux, parseDriver),
					"windows":    value(d, &r.windows, parseDriver),
				}, "confidence", "linux", "windows")
				t.drivers[k.major()] = r
			})
		},
		"toolkits": func(n *node, key string) {
			each(d, n, key, oneOf("cuda", "rocm"), func(k string, n *node, key string) {
				var w where
				d.record(n, key, w.keys(d), "confidence")
				t.kits[k] = w
			})
		},
		"os": func(n *node, key string) {
			each(d, n, key, anyText, func(k string, n *node, key string) { t.os[k] = d.osRow(k, n, key) })
		},
		"gpu": func(n *node, key string) {
			each(d, n, key, ParseCC, func(k CC, n *node, key string) {
				g := GPU{CC: k}
				d.record(n, key, keys{
					"confidence": value(d, &g.Confidence, parseConfidence),
					"family":     value(d, &g.Family, anyText),
					"embedded":   d.flag(&g.Embedded),
					"renamed_to": value(d, &g.RenamedTo, ParseCC),
					"devices":    list(d, &g.Devices, anyText),
				}, "confidence", "family")
				t.gpus[k] = g
			})
		},
		"rocm": func(n *node, key string) {
			each(d, n, key, parseSeries, func(k release, n *node, key string) {
				var r gfxRow
				d.record(n, key, keys{
					"confidence":  value(d, &r.conf, parseConfidence),
					"default_gfx": value(d, &r.list, ParseGfxList),
				}, "confidence", "default_gfx")
				t.rocm[k] = r
			})
		},
		"gfx": func(n *node, key string) {
			each(d, n, key, anyText, func(k string, n *node, key string) {
				var conf Confidence
				d.record(n, key, keys{"confidence": value(d, &conf, parseConfidence)}, "confidence")
				t.gfx[k] = conf
			})
		},
	}, "format", "date")
	if err := d.err(); err != nil {
		return nil, err
	}
	t.finish()
	return t, nil
}

func (w *where) keys(d *decoder) keys {
	return keys{
		"confidence": value(d, &w.conf, parseConfidence),
		"on":         list(d, &w.on, parseSystem),
		"not_on":     list(d, &w.notOn, parseSystem),
	}
}

func (d *decoder) torchRow(k release, n *node, key string) *torchRow {
	r := &torchRow{series: k, cuda: map[release]*buildRow{}, rocm: map[release]*buildRow{}}
	known := r.where.keys(d)
	known["released"] = value(d, &r.released, anyText)
	known["open"] = d.flag(&r.open)
	known["partial"] = d.flag(&r.partial)
	known["published"] = list(d, &r.published, memberOf(k))
	known["python"] = list(d, &r.python, parsePython)
	known["python_unsure"] = list(d, &r.unsure, parsePython)
	known["holes"] = func(n *node, key string) {
		if !d.want(n, key, array) {
			return
		}
		for i, item := range n.items {
			var h hole
			d.record(item, fmt.Sprintf("%s[%d]", key, i), keys{
				"confidence": value(d, &h.conf, parseConfidence),
				"python":     list(d, &h.python, parsePython),
				"os":         list(d, &h.on, parseSystem),
				"versions":   list(d, &h.versions, memberOf(k)),
			}, "confidence", "python")
			r.holes = append(r.holes, h)
		}
	}
	known["cxx_std"] = func(n *node, key string) {
		d.record(n, key, keys{
			"confidence": value(d, &r.cxxConf, parseConfidence),
			"value":      d.integer(&r.cxxStd),
		}, "confidence", "value")
	}
	known["cxx11_abi"] = func(n *node, key string) {
		r.abi = map[string]map[string]bool{}
		var conf Confidence
		fields := keys{"confidence": value(d, &conf, parseConfidence)}
		for _, sys := range []string{"linux", "linux-arm"} {
			fields[sys] = func(n *node, key string) {
				r.abi[sys] = map[string]bool{}
				each(d, n, key, anyText, func(tag string, n *node, key string) {
					var v bool
					d.flag(&v)(n, key)
					r.abi[sys][tag] = v
				})
			}
		}
		d.record(n, key, fields, "confidence")
	}
	known["builder"] = func(n *node, key string) {
		b := &builderRow{names: map[string]string{}}
		d.record(n, key, keys{
			"confidence": value(d, &b.conf, parseConfidence),
			"archs":      value(d, &b.archs, ParseArchList),
			"native":     d.flag(&b.native),
			"names": func(n *node, key string) {
				each(d, n, key, anyText, func(name string, n *node, key string) {
					var l ArchList
					value(d, &l, ParseArchList)(n, key)
					b.names[name] = strings.ReplaceAll(l.String(), " ", ";")
				})
			},
		}, "confidence", "archs")
		r.builder = b
	}
	known["cuda"] = func(n *node, key string) {
		each(d, n, key, parseSeries, func(k release, n *node, key string) { r.cuda[k] = d.buildRow(n, key) })
	}
	known["rocm"] = func(n *node, key string) {
		each(d, n, key, parseRelease, func(k release, n *node, key string) { r.rocm[k] = d.buildRow(n, key) })
	}
	d.record(n, key, known, "confidence", "published")
	return r
}

func (d *decoder) buildRow(n *node, key string) *buildRow {
	r := &buildRow{archs: map[string]archRow{}}
	known := r.where.keys(d)
	known["channel"] = value(d, &r.channel, oneOf("stable", "experimental", "extra"))
	known["archs"] = func(n *node, key string) {
		each(d, n, key, oneOf("x86_64", "aarch64"), func(cpu string, n *node, key string) {
			var a archRow
			d.record(n, key, keys{
				"confidence": value(d, &a.conf, parseConfidence),
				"list":       value(d, &a.list, ParseArchList),
			}, "confidence", "list")
			r.archs[cpu] = a
		})
	}
	d.record(n, key, known, "confidence")
	return r
}

func (d *decoder) cudaRow(k release, n *node, key string) *cudaRow {
	r := &cudaRow{series: k, shipped: map[release][]string{}}
	d.record(n, key, keys{
		"confidence": value(d, &r.conf, parseConfidence),
		"open":       d.flag(&r.open),
		"published":  list(d, &r.published, memberOf(k)),
		"emit": func(n *node, key string) {
			d.record(n, key, keys{
				"confidence": value(d, &r.emit.conf, parseConfidence),
				"archs":      value(d, &r.emit.list, ParseArchList),
				"ptx_isa":    value(d, &r.ptxISA, parseSeries),
			}, "confidence", "archs")
		},
		"deprecated": func(n *node, key string) {
			d.record(n, key, keys{
				"confidence": value(d, &r.deprecated.conf, parseConfidence),
				"archs":      value(d, &r.deprecated.list, ParseArchList),
			}, "confidence", "archs")
		},
		"host": func(n *node, key string) {
			h := &HostCompilers{}
			d.record(n, key, keys{
				"confidence": value(d, &h.Confidence, parseConfidence),
				"gcc":        d.bounds(&h.GCC),
				"clang":      d.bounds(&h.Clang),
				"msc":        d.bounds(&h.MSC),
			}, "confidence")
			r.host = h
		},
		"drivers": func(n *node, key string) {
			var conf Confidence
			d.record(n, key, keys{
				"confidence": value(d, &conf, parseConfidence),
				"shipped": func(n *node, key string) {
					each(d, n, key, memberOf(k), func(v release, n *node, key string) {
						var names []string
						list(d, &names, parseDriver)(n, key)
						if len(names) < 1 || len(names) > 2 {
							d.fail(n, key, "want [Linux driver] or [Linux driver, Windows driver]")
							return
						}
						r.shipped[v] = names
					})
				},
			}, "confidence", "shipped")
		},
		"default_archs": func(n *node, key string) {
			d.record(n, key, keys{
				"confidence": value(d, &r.defaults.conf, parseConfidence),
				"list":       value(d, &r.defaults.list, ParseArchList),
			}, "confidence", "list")
		},
	}, "confidence", "published")
	return r
}

func (d *decoder) osRow(name string, n *node, key string) Platform {
	p := Platform{OS: name, Exact: true}
	d.record(n, key, keys{
		"confidence": value(d, &p.Confidence, parseConfidence),
		"platform":   value(d, &p.Tag, anyText),
		"gcc":        d.integer(&p.GCC),
		"glibc":      value(d, &p.GLIBC, anyText),
		"msc":        d.integer(&p.MSC),
	}, "confidence", "platform")
	if sys, ok := systemOf(p.Tag); ok {
		p.System = sys
	} else if at := n.get("platform"); at != nil && at.kind == text {
		d.fail(at, join(key, "platform"), "%q is not a platform tag such as linux_x86_64 or win_amd64", clip(p.Tag))
	}
	return p
}

// parseDriver reads a driver version; its parts keep their leading zeros.
func parseDriver(s string) (string, error) {
	if s == "" || len(s) > 20 || strings.Trim(s, "0123456789.") != "" || strings.Contains("."+s+".", "..") {
		return "", fmt.Errorf("%q is not a driver version such as 570.124.06", clip(s))
	}
	return s, nil
}
