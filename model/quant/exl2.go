package quant

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kiln-build/kiln/model/tensor"
)

// EXL2Options change how EXL2 tensors are read. The zero value is what exllamav2 does.
type EXL2Options struct {
	// Prescale is a factor on all scales, applied to q_scale_max in float32 before it is rounded. 0
	// means 1.
	Prescale float32
	// Dialect is whose rules are followed. LoRAX demands the tensor q_invperm.
	Dialect Dialect
	// Joined allows several matrices side by side, of the same groups and order of rows: q_scale_max
	// is then [group][section], for sections of equally many columns. No file has it so.
	Joined bool
}

// LoadEXL2 reads the EXL2 tensors key.q_weight, key.q_groups, key.q_scale, key.q_scale_max, and
// where they exist key.q_invperm (without it rows are in natural order) and key.bias. An empty key
// stands for names without a prefix. A q_perm or q_group_map is not looked at, as both follow from
// the others.
//
// A missing tensor or one that breaks the format gives a *[FormatError], several of them joined
// where that is known at once.
func LoadEXL2(src Source, key string, opts EXL2Options) (*QMatrix, error) {
	l := loader{src, key}
	m, err := l.exl2Structure(opts.Dialect == LoRAX, opts.Joined)
	if err != nil {
		return nil, err
	}
	if m.words, err = l.codes("q_weight"); err != nil {
		return nil, err
	}
	if m.scaleCodes, err = readWords(l, "q_scale"); err != nil {
		return nil, err
	}
	if m.scaleMax, err = l.halfs("q_scale_max"); err != nil {
		return nil, err
	}
	if m.bias, err = l.bias(); err != nil {
		return nil, err
	}
	prescale := opts.Prescale
	if prescale == 0 {
		prescale = 1
	}
	if i, ok := m.setScales(prescale); !ok {
		return nil, l.bad("q_scale_max", i, "value %v with prescale %v overflows half precision", m.scaleMax[i].Float32(), prescale)
	}
	return m, nil
}

// What exllamav2 can number. A row of the permutation takes 16 unsigned bits, and so does the
// number of rows that are left in a group, counted from its first row on: a group of 65,536 rows
// would have none left, and the kernels would never reach the next one.
const (
	maxEXL2Rows  = 1 << 16
	maxGroupRows = maxEXL2Rows - 32
)

// exl2Structure reads what decides about the shape of the matrix: headers, group table and
// permutation. It is the only reader of these rules, for files and for calls. They are what
// exllamav2 can load and compute with, which is more than its converter writes (that pads columns
// to 32, for one) and more than it checks.
func (l loader) exl2Structure(needPermutation, joined bool) (*QMatrix, error) {
	var errs []error
	weight := l.need(&errs, "q_weight", 2, tensor.I32)
	groups := l.need(&errs, "q_groups", 1, tensor.I16)
	scale := l.need(&errs, "q_scale", 2, tensor.I32)
	dims := 1
	if t, _ := l.src.Lookup(l.name("q_scale_max")); joined && len(t.Shape) == 2 {
		dims = 2
	}
	scaleMax := l.need(&errs, "q_scale_max", dims, tensor.F16)
	if _, ok := l.src.Lookup(l.name("q_invperm")); ok || needPermutation {
		l.need(&errs, "q_invperm", 1, tensor.I32, tensor.I16) // exllamav2 narrows it to I16 in any case
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	packed, cols := weight[0], weight[1]
	count := groups[0] / 2
	switch {
	case cols == 0 || cols%8 != 0: // a word of q_scale has 8 columns; no kernel needs more
		return nil, l.bad("q_weight", -1, "%d columns: want a multiple of 8, at least 8", cols)
	case groups[0]%2 != 0:
		return nil, l.bad("q_groups", -1, "%d elements: want pairs of width and first packed row", groups[0])
	case count == 0:
		return nil, l.bad("q_groups", -1, "no groups")
	case scale[0] != count || scale[1] != cols/8:
		return nil, l.bad("q_scale", -1, "shape %v: want [%d %d] for %d groups and %d columns", scale, count, cols/8, count, cols)
	case dims == 2 && (scaleMax[1] == 0 || cols%(8*scaleMax[1]) != 0):
		return nil, l.bad("q_scale_max", -1, "%d sections: want them of whole words of q_scale, for %d columns", scaleMax[1], cols)
	case scaleMax[0] != count:
		return nil, l.bad("q_scale_max", -1, "%d elements: want %d, one for each group", scaleMax[0], count)
	}
	// make_q_matrix takes a bias in half precision only, and nothing on the way converts it.
	if err := l.checkBias(cols, tensor.F16); err != nil {
		return nil, err
	}
	m := &QMatrix{format: EXL2, cols: cols, sections: 1}
	if dims == 2 {
		m.sections = scaleMax[1]
	}
	if err := l.readGroups(m, packed); err != nil {
		return nil, err
	}
	if _, ok := l.src.Lookup(l.name("q_invperm")); ok {
		inv, err := l.permutation("q_invperm", m.rows)
		if err != nil {
			return nil, err
		}
		m.setInvPerm(inv)
	}
	return m, nil
}

// exl2File is exl2Structure for tensors of a file. exllamav2's loader sorts q_invperm to find the
// permutation, which the functions are given, so it must be there, and 16 bits are signed.
func (l loader) exl2File() (*QMatrix, error) {
	m, err := l.exl2Structure(true, false)
	if err != nil {
		return nil, err
	}
	const maxSigned = 1 << 15
	if t, _ := l.src.Lookup(l.name("q_invperm")); t.DType == tensor.I16 && m.rows > maxSigned {
		return nil, &FormatError{
			Tensor: l.name("q_invperm"), Index: -1, Rule: RuleType,
			Reason: fmt.Sprintf("type I16 for %d rows: want I32 for more than %d", m.rows, maxSigned),
		}
	}
	return m, nil
}

// readGroups reads the group table of a matrix with so many packed rows.
func (l loader) readGroups(m *QMatrix, packed int) error {
	table, err := readTensor(l, "q_groups", 2, func(dst []int16, b []byte) []int16 {
		return append(dst, int16(binary.LittleEndian.Uint16(b)))
	})
	if err != nil {
		return err
	}
	count := len(table) / 2
	for i := range count {
		width, start, end := int(table[2*i]), int(table[2*i+1]), packed
		if i+1 < count {
			end = int(table[2*i+3])
		}
		switch {
		case !validWidth(width):
			return l.bad("q_groups", 2*i, "width %d: want 2, 3, 4, 5, 6 or 8", width)
		case i > 0 && width > m.groups[i-1].Bits: // the kernels know only where each width ends, widest first
			return l.bad("q_groups", 2*i, "width %d after width %d: want descending widths", width, m.groups[i-1].Bits)
		case i == 0 && start != 0:
			return l.bad("q_groups", 1, "first packed row %d: want 0", start)
		case end <= start && i+1 < count:
			return l.bad("q_groups", 2*i+3, "first packed row %d after %d: want ascending rows", end, start)
		case end <= start:
			return l.bad("q_groups", 2*i+1, "first packed row %d: q_weight has %d rows", start, packed)
		case (end-start)%width != 0:
			// The kernels go 32 weight rows at a time, which take width packed rows, and keep one
			// scale for each step. 16 rows, in 3 packed rows of 6 bits or one of 2, are whole codes
			// but half a step.
			return l.bad("q_groups", 2*i, "group of %d packed rows of width %d: want a multiple of %d, for a multiple of 32 weight rows",
				end-start, width, width)
		}
		g := Group{Bits: width, FirstRow: m.rows, Rows: (end - start) / width * 32}
		m.starts = append(m.starts, start)
		m.groups = append(m.groups, g)
		m.rows += g.Rows
		switch {
		case m.rows > maxEXL2Rows:
			return l.bad("q_groups", 2*i, "more than %d weight rows up to this group", maxEXL2Rows)
		case g.Rows > maxGroupRows:
			return l.bad("q_groups", 2*i, "group of %d weight rows: want at most %d", g.Rows, maxGroupRows)
		}
	}
	return nil
}

// permutation reads an inverse permutation of n elements.
func (l loader) permutation(suffix string, n int) ([]int32, error) {
	t, _ := l.src.Lookup(l.name(suffix))
	var inv []int32
	var err error
	if t.DType == tensor.I16 { // narrowed for a call of exllamav2: 16 unsigned bits
		inv, err = readTensor(l, suffix, 2, func(dst []int32, b []byte) []int32 {
			return append(dst, int32(binary.LittleEndian.Uint16(b)))
		})
	} else {
		inv, err = readTensor(l, suffix, 4, appendInt32)
	}
	if err != nil {
		return nil, err
	}
	if len(inv) != n {
		return nil, l.bad(suffix, -1, "%d elements: want %d, one for each row of the groups", len(inv), n)
	}
	seen := make([]int32, n) // by value: index + 1 of the element that has it
	for k, i := range inv {
		if i < 0 || int(i) >= n {
			return nil, l.bad(suffix, k, "row %d: want 0 to %d", i, n-1)
		}
		if seen[i] != 0 {
			return nil, l.bad(suffix, k, "row %d: element %d has it already", i, seen[i]-1)
		}
		seen[i] = int32(k) + 1
	}
	return inv, nil
}
