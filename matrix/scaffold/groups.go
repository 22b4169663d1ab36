package scaffold

import (
	"cmp"
	"maps"
	mathbits "math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/matrix"
)

// group is an entry of `matrix` in packages.yml.
type group struct {
	kind, platform, arch string
	axes                 []axis // in the order in which they are written
	zip                  []string
	exclude              [][]axis
}

// axis is a name with its values, or with the patterns of an exclude rule.
type axis struct {
	name   string
	values []string
	custom bool
}

// What bounds the search for a short file: how many forms of groups are made, how many
// combinations a group may have before exclude, and how many exclude rules.
const (
	maxForms = 4_000
	maxHull  = 4_096
	maxRules = 8
)

// groupsOf returns few groups that together have exactly these rows. With excludes false they
// have no exclude rules. It tries many ways and keeps the shortest; that it is the shortest of
// all is not proven.
func groupsOf(rows []row, custom []string, perGroupArch, excludes bool) []group {
	type class struct {
		kind, toolkit, platform, arch, custom string
		torch, version                        bool
	}
	var order []class
	members := map[class][]row{}
	for _, r := range rows {
		c := class{kind: r.kind, platform: r.platform, torch: r.torch != "", version: r.version != ""}
		switch {
		case r.cuda != "":
			c.toolkit = "cuda"
		case r.rocm != "":
			c.toolkit = "rocm"
		}
		if perGroupArch {
			c.arch = r.arch
		}
		c.custom = strings.Join(slices.Sorted(maps.Keys(matrix.Axes(r.custom).Map())), ",")
		if members[c] == nil {
			order = append(order, c)
		}
		members[c] = append(members[c], r)
	}
	var out []group
	for _, c := range order {
		s := newSearch(members[c], custom, excludes)
		for _, g := range s.run() {
			g.kind, g.platform, g.arch = c.kind, c.platform, c.arch
			out = append(out, g)
		}
	}
	return out
}

// search looks for the groups of rows that have the same axes.
type search struct {
	names    []string
	custom   []bool
	values   [][]string // of each axis, sorted
	rows     [][]int    // for each row, the index of its value in each axis
	at       map[string]int
	matches  [][][]bool // matches[axis][pattern][value]
	excludes bool
	forms    map[string]*form
	made     int
}

// form is the best way to write a set of rows as one group.
type form struct {
	group group
	cost  int
}

func newSearch(rows []row, custom []string, excludes bool) *search {
	s := &search{at: map[string]int{}, excludes: excludes, forms: map[string]*form{}}
	add := func(name string, isCustom bool, value func(row) string) {
		counts := map[string]int{}
		var order []string
		for _, r := range rows {
			v := value(r)
			if counts[v]++; counts[v] == 1 {
				order = append(order, v)
			}
		}
		if counts[""] > 0 {
			return // the rows have no such axis
		}
		if !isCustom && name != "os" {
			order = matrix.SortedValues(counts)
		}
		s.names, s.custom, s.values = append(s.names, name), append(s.custom, isCustom), append(s.values, order)
		matches := make([][]bool, len(order))
		for i, p := range order {
			for _, v := range order {
				matches[i] = append(matches[i], p == v || !isCustom && name != "os" && precise(p, v))
			}
		}
		s.matches = append(s.matches, matches)
	}
	add("version", false, func(r row) string { return r.version })
	add("os", false, func(r row) string { return r.os })
	add("cuda", false, func(r row) string { return r.cuda })
	add("rocm", false, func(r row) string { return r.rocm })
	add("torch", false, func(r row) string { return r.torch })
	for _, name := range custom {
		add(name, true, func(r row) string { return matrix.Axes(r.custom).Get(name) })
	}
	add("python", false, func(r row) string { return r.python })
	for _, r := range rows {
		coded := make([]int, len(s.names))
		for i, name := range s.names {
			v := r.value(name)
			coded[i] = slices.Index(s.values[i], v)
		}
		if key := rowKey(coded); s.at[key] == 0 {
			s.rows = append(s.rows, coded)
			s.at[key] = len(s.rows)
		}
	}
	return s
}

// precise reports whether the pattern of an exclude rule matches more than its own text: 2.5
// matches 2.5.1.
func precise(pattern, value string) bool {
	return strings.HasPrefix(value, pattern+".") || strings.HasPrefix(strings.TrimSuffix(pattern, ".0"), value) && strings.HasSuffix(pattern, ".0")
}

func (r row) value(axis string) string {
	switch axis {
	case "version":
		return r.version
	case "os":
		return r.os
	case "cuda":
		return r.cuda
	case "rocm":
		return r.rocm
	case "torch":
		return r.torch
	case "python":
		return r.python
	}
	return matrix.Axes(r.custom).Get(axis)
}

func rowKey(coded []int) string {
	var b strings.Builder
	for _, v := range coded {
		b.WriteString(strconv.Itoa(v))
		b.WriteByte(' ')
	}
	return b.String()
}

// cluster is a set of rows, by index, sorted.
type cluster []int

func (c cluster) key() string { return rowKey(c) }

// run returns the groups of the cheapest partition that was found.
func (s *search) run() []group {
	var best []cluster
	bestCost := -1
	try := func(parts []cluster) {
		parts = s.merge(parts)
		cost := 0
		for _, p := range parts {
			f := s.form(p)
			if f == nil {
				return
			}
			cost += f.cost
		}
		if bestCost < 0 || cost < bestCost {
			best, bestCost = parts, cost
		}
	}
	var starts [][]cluster
	seen := map[string]bool{}
	for _, order := range orders(len(s.names)) {
		parts := s.boxes(order)
		keys := make([]string, len(parts))
		for i, p := range parts {
			keys[i] = p.key()
		}
		if key := strings.Join(keys, ";"); !seen[key] {
			seen[key] = true
			starts = append(starts, parts)
		}
	}
	slices.SortStableFunc(starts, func(a, b []cluster) int { return len(a) - len(b) })
	for _, parts := range starts[:min(len(starts), 12)] {
		try(parts)
	}
	all := make(cluster, len(s.rows))
	for i := range all {
		all[i] = i
	}
	try([]cluster{all})
	var out []group
	slices.SortFunc(best, func(a, b cluster) int { return cmp.Compare(a[0], b[0]) })
	for _, p := range best {
		out = append(out, s.form(p).group)
	}
	return out
}

// orders returns the permutations of n axes, or a few of them if they are many.
func orders(n int) [][]int {
	first := make([]int, n)
	for i := range first {
		first[i] = i
	}
	if n > 6 {
		var out [][]int
		for i := range n { // rotations, both ways round
			rotated := slices.Concat(first[i:], first[:i])
			back := slices.Clone(rotated)
			slices.Reverse(back)
			out = append(out, rotated, back)
		}
		return out
	}
	var out [][]int
	var permute func(done, rest []int)
	permute = func(done, rest []int) {
		if len(rest) == 0 {
			out = append(out, slices.Clone(done))
			return
		}
		for i := range rest {
			permute(append(slices.Clone(done), rest[i]), slices.Concat(rest[:i], rest[i+1:]))
		}
	}
	permute(nil, first)
	return out
}

// boxes joins rows along one axis after the other: parts that are equal but for their values of
// the axis become one.
func (s *search) boxes(order []int) []cluster {
	type box struct {
		sets [][]int
		rows cluster
	}
	list := make([]box, len(s.rows))
	for i, r := range s.rows {
		sets := make([][]int, len(r))
		for d, v := range r {
			sets[d] = []int{v}
		}
		list[i] = box{sets, cluster{i}}
	}
	for _, d := range order {
		index := map[string]int{}
		var next []box
		for _, b := range list {
			var others []string
			for e, set := range b.sets {
				if e != d {
					others = append(others, rowKey(set))
				}
			}
			key := strings.Join(others, ",")
			if i, ok := index[key]; ok {
				next[i].sets[d] = append(next[i].sets[d], b.sets[d]...)
				slices.Sort(next[i].sets[d])
				next[i].rows = append(next[i].rows, b.rows...)
				continue
			}
			index[key] = len(next)
			next = append(next, b)
		}
		list = next
	}
	out := make([]cluster, len(list))
	for i, b := range list {
		slices.Sort(b.rows)
		out[i] = b.rows
	}
	return out
}

// merge joins parts while that makes the file shorter, the greatest gain first.
func (s *search) merge(parts []cluster) []cluster {
	parts = slices.Clone(parts)
	for len(parts) > 1 {
		gain, at, with := 0, -1, -1
		for i := range parts {
			a := s.form(parts[i])
			for j := i + 1; a != nil && j < len(parts); j++ {
				b := s.form(parts[j])
				if b == nil || s.made > maxForms {
					continue
				}
				if both := s.form(union(parts[i], parts[j])); both != nil && a.cost+b.cost-both.cost > gain {
					gain, at, with = a.cost+b.cost-both.cost, i, j
				}
			}
		}
		if at < 0 {
			break
		}
		parts[at] = union(parts[at], parts[with])
		parts = slices.Delete(parts, with, with+1)
	}
	return parts
}

func union(a, b cluster) cluster {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return out
}

// form returns the shortest way to write rows as one group, nil if there is none.
func (s *search) form(rows cluster) *form {
	key := rows.key()
	if f, ok := s.forms[key]; ok {
		return f
	}
	s.made++
	f := s.newForm(rows)
	s.forms[key] = f
	return f
}

func (s *search) newForm(rows cluster) *form {
	hull := make([][]int, len(s.names))
	size := 1
	for d := range s.names {
		used := map[int]bool{}
		for _, i := range rows {
			used[s.rows[i][d]] = true
		}
		hull[d] = slices.Sorted(maps.Keys(used))
		if size *= len(hull[d]); size > maxHull && size > len(rows) {
			return nil
		}
	}
	var candidates []group
	if size == len(rows) {
		candidates = append(candidates, s.group(hull))
	} else {
		for a := range s.names {
			for b := a + 1; b < len(s.names); b++ {
				if g, ok := s.zipped(rows, hull, size, a, b); ok {
					candidates = append(candidates, g)
				}
			}
		}
		if s.excludes {
			g := s.group(hull)
			g.exclude = s.holes(rows, hull, size)
			if g.exclude != nil {
				candidates = append(candidates, g)
			}
		}
	}
	var best *form
	for _, g := range candidates {
		if cost := g.cost(); best == nil || cost < best.cost {
			best = &form{g, cost}
		}
	}
	return best
}

func (s *search) group(hull [][]int) group {
	var g group
	for d, set := range hull {
		a := axis{name: s.names[d], custom: s.custom[d]}
		for _, v := range set {
			a.values = append(a.values, s.values[d][v])
		}
		g.axes = append(g.axes, a)
	}
	return g
}

// zipped writes rows as a product in which two axes advance together.
func (s *search) zipped(rows cluster, hull [][]int, size, a, b int) (group, bool) {
	n := len(hull[a])
	if n < 2 || n != len(hull[b]) || size/n != len(rows) {
		return group{}, false
	}
	partner, taken := map[int]int{}, map[int]int{}
	for _, i := range rows {
		va, vb := s.rows[i][a], s.rows[i][b]
		if p, ok := partner[va]; ok && p != vb {
			return group{}, false
		}
		if p, ok := taken[vb]; ok && p != va {
			return group{}, false
		}
		partner[va], taken[vb] = vb, va
	}
	g := s.group(hull)
	for i, va := range hull[a] {
		g.axes[b].values[i] = s.values[b][partner[va]]
	}
	g.zip = []string{s.names[a], s.names[b]}
	return g, true
}

// holes returns exclude rules that remove from a product what is not among the rows, nil if it
// cannot be done, or not with few rules.
func (s *search) holes(rows cluster, hull [][]int, size int) [][]axis {
	in := map[string]bool{}
	wanted := make([][]int, len(rows))
	for i, r := range rows {
		wanted[i] = s.rows[r]
		in[rowKey(s.rows[r])] = true
	}
	var missing [][]int
	at := make([]int, len(hull))
	for range size {
		r := make([]int, len(hull))
		for d, i := range at {
			r[d] = hull[d][i]
		}
		if !in[rowKey(r)] {
			missing = append(missing, r)
		}
		for d := len(at) - 1; d >= 0; d-- {
			if at[d]++; at[d] < len(hull[d]) {
				break
			}
			at[d] = 0
		}
	}
	var varying []int
	for d := range hull {
		if len(hull[d]) > 1 {
			varying = append(varying, d)
		}
	}
	keep, remove := s.index(wanted), s.index(missing)
	left := newBits(len(missing))
	for i := range missing {
		left.set(i)
	}
	tried := orders(len(varying))
	var out [][]axis
	for first := left.first(); first >= 0; first = left.first() {
		if len(out) == maxRules {
			return nil
		}
		var best map[int][]int
		bestCount, bestCost := 0, 0
		for _, order := range tried {
			rule := s.widest(keep, hull, missing[first], varying, order)
			if rule == nil {
				return nil
			}
			count := remove.matching(rule, left).count()
			if count < bestCount {
				continue
			}
			if cost := len(flowMap(s.rule(rule, hull))); count > bestCount || cost < bestCost {
				best, bestCount, bestCost = rule, count, cost
			}
		}
		out = append(out, s.rule(best, hull))
		left.clear(remove.matching(best, left))
	}
	return out
}

// widest returns a rule that matches one missing row and no wanted one, with as few keys as the
// order in which they are given up allows. It is nil if every such rule matches too much.
func (s *search) widest(keep *index, hull [][]int, row []int, varying, order []int) map[int][]int {
	rule := map[int][]int{}
	for _, d := range varying {
		rule[d] = []int{row[d]}
	}
	harmless := func() bool { return keep.matching(rule, keep.all).first() < 0 }
	if !harmless() {
		return nil
	}
	for _, i := range order {
		d := varying[i]
		kept := rule[d]
		if delete(rule, d); len(rule) == 0 || !harmless() {
			rule[d] = kept
		}
	}
	for _, i := range order {
		d := varying[i]
		if rule[d] == nil {
			continue
		}
		for _, v := range hull[d] {
			if slices.Contains(rule[d], v) {
				continue
			}
			kept := rule[d]
			if rule[d] = append(slices.Clone(kept), v); !harmless() {
				rule[d] = kept
			}
		}
		slices.Sort(rule[d])
	}
	return rule
}

// index says which of some rows a pattern matches.
type index struct {
	all  bits
	rows [][]bits // by axis and pattern
	work bits
}

func (s *search) index(rows [][]int) *index {
	x := &index{all: newBits(len(rows)), work: newBits(len(rows))}
	for d := range s.names {
		byPattern := make([]bits, len(s.values[d]))
		for p := range byPattern {
			byPattern[p] = newBits(len(rows))
			for i, r := range rows {
				if s.matches[d][p][r[d]] {
					byPattern[p].set(i)
				}
			}
		}
		x.rows = append(x.rows, byPattern)
	}
	for i := range rows {
		x.all.set(i)
	}
	return x
}

// matching returns which of the rows in among a rule matches. It is valid until the next call.
func (x *index) matching(rule map[int][]int, among bits) bits {
	copy(x.work, among)
	for d, patterns := range rule {
		for w := range x.work {
			var any uint64
			for _, p := range patterns {
				any |= x.rows[d][p][w]
			}
			x.work[w] &= any
		}
	}
	return x.work
}

// bits is a set of small numbers.
type bits []uint64

func newBits(n int) bits { return make(bits, (n+63)/64) }
func (b bits) set(i int) { b[i/64] |= 1 << (i % 64) }
func (b bits) clear(of bits) {
	for w := range b {
		b[w] &^= of[w]
	}
}

func (b bits) first() int {
	for w, word := range b {
		if word != 0 {
			return w*64 + mathbits.TrailingZeros64(word)
		}
	}
	return -1
}

func (b bits) count() int {
	n := 0
	for _, word := range b {
		n += mathbits.OnesCount64(word)
	}
	return n
}

// rule writes an exclude rule. Several versions at one end of an axis become a range.
func (s *search) rule(rule map[int][]int, hull [][]int) []axis {
	var out []axis
	for _, d := range slices.Sorted(maps.Keys(rule)) {
		a := axis{name: s.names[d], custom: s.custom[d]}
		for _, v := range rule[d] {
			a.values = append(a.values, s.values[d][v])
		}
		if n := len(rule[d]); n > 1 && !s.custom[d] && s.names[d] != "os" {
			name := func(v int) string { return s.values[d][v] }
			switch {
			case slices.Equal(rule[d], hull[d][:n]):
				if next, last := compat.Minor(name(hull[d][n])), name(hull[d][n-1]); plain(s.values[d]) && compat.Minor(last) != next {
					a.values = []string{"<" + next}
				}
			case slices.Equal(rule[d], hull[d][len(hull[d])-n:]):
				if first, before := compat.Minor(name(rule[d][0])), name(hull[d][len(hull[d])-n-1]); plain(s.values[d]) && compat.Minor(before) != first {
					a.values = []string{">=" + first}
				}
			}
		}
		out = append(out, a)
	}
	return out
}

// plain reports whether versions are numbers with dots alone, which ranges order as expected.
func plain(values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return strings.Trim(v, "0123456789.") != "" })
}
