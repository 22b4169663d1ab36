package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kiln-build/kiln/quant"
)

// What has to be known of the kernels on this side; see kernels/gemm.cu.
const (
	gemmStages      = 6
	maxStaticShared = 1024 // of any kernel with dynamic shared memory

	minMajor, minMinor = 8, 0
)

// required are the modules without which nothing works.
var required = []string{"pack", "gemm"}

// shape is a variant of the kernel in gemm.cu: 8·rows8 rows of activations, 32·strips columns for each warp.
type shape struct{ rows8, strips int }

var (
	fusedShapes  = []shape{{1, 2}, {2, 2}, {4, 2}}
	directShapes = []shape{{1, 2}}
	roundShapes  = []shape{{1, 2}, {4, 2}}
)

func gemmName(s shape, width int, kind string) string {
	return fmt.Sprintf("kiln_gemm_%dx%d_%d_%s", s.rows8, s.strips, width, kind)
}

// Kernels returns the names of the kernels that an image has, sorted.
func (i Image) Kernels() []string {
	names := i.kernels()
	slices.Sort(names)
	return names
}

func (i Image) kernels() []string {
	switch i.Module {
	case "pack":
		return []string{"kiln_pack", "kiln_dequantize", "kiln_gather", "kiln_copy"}
	case "gemm":
		var names []string
		for _, kind := range []string{"fs", "fa"} {
			for _, s := range fusedShapes {
				names = append(names, gemmName(s, 4, kind), gemmName(s, 0, kind))
			}
		}
		for _, kind := range []string{"ds", "da"} {
			for _, s := range directShapes {
				names = append(names, gemmName(s, 4, kind), gemmName(s, 0, kind))
			}
		}
		for _, kind := range []string{"rs", "ra"} {
			for _, s := range roundShapes {
				names = append(names, gemmName(s, 0, kind))
			}
		}
		return names
	}
	if i.Module == "wgmma" {
		var names []string
		for _, rows := range wideRows {
			for _, kind := range []string{"s", "a"} {
				names = append(names, wideName(rows, 4, kind), wideName(rows, 0, kind))
			}
		}
		return names
	}
	return nil
}

// wideRows are the heights of the tiles in wgmma.cu.
var wideRows = []int{16, 32, 64, 128}

func wideName(rows, width int, kind string) string {
	return fmt.Sprintf("kiln_wide_%d_%d_%s", rows, width, kind)
}

// plan is how a product is computed.
type plan struct {
	dense                      bool // dequantized, then with cuBLAS
	wide                       bool // with the kernel in wgmma.cu
	direct                     bool // without kiln_gather
	kernel                     string
	shape                      shape
	warps, columnWarps, splits int
	columns                    int // tiles of columns
	shared                     int
}

// grid is tiles of columns, splits of the rows of the weight, and tiles of activations.
func (p plan) grid(m int) [3]uint32 {
	if p.wide {
		return [3]uint32{uint32(p.splits * p.tiles(m)), 1, 1}
	}
	return [3]uint32{uint32(p.columns), uint32(p.splits), uint32(p.rowTiles(m))}
}

func (p plan) rowTiles(m int) int { return (m + 8*p.shape.rows8 - 1) / (8 * p.shape.rows8) }

func (p plan) tiles(m int) int { return p.columns * p.rowTiles(m) }

func (p plan) workBytes(m int) int64 {
	return int64(p.tiles(m)) * int64(p.splits) * int64(8*p.shape.rows8*p.columnWarps*p.shape.strips*stripColumns) * 4
}

func (p plan) String() string {
	if p.dense {
		return p.kernel
	}
	return fmt.Sprintf("%s warps %d/%d splits %d", p.kernel, p.columnWarps, p.warps, p.splits)
}

// kernelKind is which kernel of gemm.cu: products with exact codes, the same with activations in natural order, or
// products with rounded weights.
type kernelKind string

const (
	fused   kernelKind = "f"
	direct  kernelKind = "d"
	rounded kernelKind = "r"
)

// make completes a plan of the kernel in gemm.cu for m rows. It uses as many warps, of 8, as shared memory allows.
func (d *Device) make(m int, w *Weight, s shape, kind kernelKind, columnWarps, splits int) (plan, error) {
	width, zeros := 0, "s"
	if w.width == 4 && kind != rounded {
		width = 4
	}
	if w.args.zeros != 0 {
		zeros = "a"
	}
	p := plan{
		kernel: gemmName(s, width, string(kind)+zeros), direct: kind == direct, shape: s, warps: 8,
		splits: max(1, min(splits, int(w.args.blockCount))),
	}
	activations, rows := 512*s.rows8, 0
	if p.direct {
		activations, rows = 64, 2*m*(w.Rows()+8)
	}
	for ; p.warps > 0; p.warps /= 2 {
		p.columnWarps = min(columnWarps, p.warps)
		ring := p.warps*gemmStages*(s.strips*int(w.args.maxWidth)*unitBytes+activations) + rows
		sums := p.warps / p.columnWarps * 8 * s.rows8 * (p.columnWarps*s.strips*stripColumns + 4) * 4
		if p.shared = max(ring, sums); p.shared <= d.info.SharedBytes-maxStaticShared {
			width := p.columnWarps * s.strips
			p.columns = (int(w.args.strips) + width - 1) / width
			return p, nil
		}
	}
	return p, errors.New("the device has too little shared memory")
}

// makeWide completes a plan of the kernel in wgmma.cu.
func (d *Device) makeWide(w *Weight, rows, splits int) (plan, error) {
	const warps = 8
	stages, tables := 12, warps*64
	if rows > 64 {
		stages = 6
	} else if rows > 32 {
		stages = 8
	}
	kind, width := "s", 0
	if w.args.zeros != 0 {
		kind = "a"
	}
	if w.width == 4 {
		width = 4
	}
	if w.args.zeros != 0 {
		tables *= 2
	}
	slot := (rows*64 + tables + warps*int(w.args.maxWidth)*unitBytes + 511) &^ 511
	p := plan{
		wide: true, kernel: wideName(rows, width, kind), shape: shape{rows / 8, warps}, warps: warps + 4, columnWarps: 1,
		splits:  max(1, min(splits, int(w.args.blockCount))),
		columns: (int(w.args.strips) + warps - 1) / warps,
		shared:  max(stages*slot, rows*(warps*stripColumns+4)*4),
	}
	if _, ok := d.functions[p.kernel]; !ok {
		return p, fmt.Errorf("no kernel %s for this device", p.kernel)
	}
	if p.shared > d.info.SharedBytes-maxStaticShared {
		return p, errors.New("the device has too little shared memory")
	}
	return p, nil
}

// chooseWide returns the plan of the wide kernel that a simple model thinks fastest and its time in µs, +Inf if the device
// has no such kernel. The model is of an H200: the time of a tile for each block of rows, and what it costs to begin, to add
// up and to end. Fewer multiprocessors can work in larger clusters, which must find room near each other.
func (d *Device) chooseWide(m int, w *Weight) (plan, float64) {
	stepTime := map[int]float64{16: 0.26, 32: 0.27, 64: 0.29, 128: 0.39}
	room := map[int]int{1: 132, 2: 128, 4: 112, 8: 96}
	begin := map[int]float64{1: 2, 2: 2, 4: 2, 8: 5}
	var best plan
	least := math.Inf(1)
	for _, rows := range wideRows {
		for splits := 1; splits <= 8; splits *= 2 {
			p, err := d.makeWide(w, rows, splits)
			if err != nil || p.splits != splits {
				continue
			}
			usable := max(1, room[splits]*d.info.Multiprocessors/132)
			waves := (p.tiles(m)*splits + usable - 1) / usable
			steps := (int(w.args.blockCount) + splits - 1) / splits
			cost := float64(waves) * (float64(steps)*stepTime[rows] + begin[splits])
			if splits > 1 {
				cost += 1 + 0.01*float64(rows)
			}
			if cost < least {
				best, least = p, cost
			}
		}
	}
	return best, least
}

// narrowTime is what the same model says of a plan of the kernel in gemm.cu.
func (d *Device) narrowTime(m int, w *Weight, p plan) float64 {
	weights := float64(w.args.rows) * float64(w.args.columns) / 1e6
	switch {
	case m <= 8:
		return 0 // no other is faster
	case m <= 16:
		return 9 + 0.19*weights
	case m <= 32:
		parts := p.splits * (p.warps / p.columnWarps)
		steps := (int(w.args.blockCount) + parts - 1) / parts
		waves := (p.tiles(m)*p.splits + d.info.Multiprocessors - 1) / d.info.Multiprocessors
		cost := 6.4 + 0.69*float64(waves*steps)
		if p.splits > 1 {
			cost += 6.3
		}
		return cost
	}
	return math.Inf(1)
}

// The direct kernel is faster for a small product, whose time is that of starting kernels: up to so many activations and
// strips.
const (
	directElements = 4 << 10
	directStrips   = 256
)

// densePlan dequantizes and leaves the rest to cuBLAS. On an H200 cuBLAS alone was faster than the kernel in wgmma.cu by more
// than dequantizing should take from denseRows on; the two together have not been measured.
var densePlan = plan{dense: true, kernel: "kiln_dequantize and cuBLAS"}

const denseRows = 2048

// planKey is what a plan depends on, for one weight.
type planKey struct {
	m             int
	path          quant.Path
	aligned, bias bool
}

// maxPlans bounds what a weight remembers; prompts have many lengths.
const maxPlans = 1024

// plan is choose, remembered.
func (w *Weight) plan(m int, path quant.Path, aligned, bias bool) (plan, error) {
	key := planKey{m, path, aligned, bias}
	p, tuned := w.d.tunedPlan(w.tuneKey(m))
	if tuned && path == quant.PathAuto && (aligned || !p.direct) && !(bias && p.dense) {
		return p, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, ok := w.plans[key]; ok {
		return p, nil
	}
	p, err := w.d.choose(m, w, path, aligned)
	if err != nil {
		return p, err
	}
	if w.d.blas != nil && m >= denseRows && path != quant.PathFused && !bias {
		p = densePlan
	}
	if w.plans == nil || len(w.plans) == maxPlans {
		w.plans = map[planKey]plan{}
	}
	w.plans[key] = p
	return p, nil
}

// choose returns the plan for a product of m rows. aligned says that the activations are, to 16 bytes.
func (d *Device) choose(m int, w *Weight, path quant.Path, aligned bool) (plan, error) {
	narrow, err := d.chooseNarrow(m, w, path, aligned)
	if path == quant.PathFused {
		return narrow, err
	}
	cost := math.Inf(1)
	if err == nil {
		cost = d.narrowTime(m, w, narrow)
	}
	if wide, least := d.chooseWide(m, w); least < cost {
		return wide, nil
	}
	return narrow, err
}

// chooseNarrow returns the plan of the kernel in gemm.cu.
func (d *Device) chooseNarrow(m int, w *Weight, path quant.Path, aligned bool) (plan, error) {
	s, kind := shape{1, 2}, fused
	switch {
	case path == quant.PathReconstruct:
		kind = rounded
	case m <= 8 && w.order != 0 && m*w.Rows() <= directElements && w.args.strips <= directStrips && aligned:
		kind = direct
	}
	if m > 16 || kind == rounded && m > 8 {
		s = shape{4, 2}
	} else if m > 8 {
		s = shape{2, 2}
	}
	// Registers allow two thread blocks on a multiprocessor, or one of the largest shape. They should all run at once.
	room := 2 * d.info.Multiprocessors
	if s.rows8 > 2 {
		room = d.info.Multiprocessors
	}
	rowTiles := (m + 8*s.rows8 - 1) / (8 * s.rows8)
	columnWarps := 1
	tiles := func() int {
		width := columnWarps * s.strips
		return (int(w.args.strips) + width - 1) / width * rowTiles
	}
	for tiles() > room && columnWarps < 4 {
		columnWarps *= 2
	}
	// Adding up costs more with more rows, so each split should then have more blocks.
	least := 16
	if m > 4 && m <= 8 {
		least = 40
	}
	splits := min(8, max(1, room/tiles()), max(1, int(w.args.blockCount)/least))
	return d.make(m, w, s, kind, columnWarps, splits)
}

// candidates returns plans to compare for a product of m rows.
func (d *Device) candidates(m int, w *Weight) []plan {
	var out []plan
	if d.blas != nil && m >= 128 {
		out = append(out, densePlan)
	}
	for _, rows := range wideRows {
		for splits := 1; splits <= 8; splits *= 2 {
			if p, err := d.makeWide(w, rows, splits); m > 8 && rows < 2*m+32 && err == nil {
				out = append(out, p)
			}
		}
	}
	for _, s := range fusedShapes {
		if m > 64 || 8*s.rows8 < min(m, 32) || s.rows8 > 1 && 4*s.rows8 >= m {
			continue
		}
		kinds := []kernelKind{fused}
		if s.rows8 == 1 && w.order != 0 {
			kinds = append(kinds, direct)
		}
		for _, kind := range kinds {
			for _, columnWarps := range []int{1, 2, 4} {
				for _, splits := range []int{1, 2, 3, 4, 6, 8} {
					p, err := d.make(m, w, s, kind, columnWarps, splits)
					blocks := p.tiles(m) * p.splits
					if err == nil && blocks*2 > d.info.Multiprocessors && blocks < 8*d.info.Multiprocessors {
						out = append(out, p)
					}
				}
			}
		}
	}
	return out
}
