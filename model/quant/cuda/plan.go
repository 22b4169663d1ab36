package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kiln-build/kiln/model/quant"
)

// What has to be known of the kernels on this side; see kernels/gemm.cu.
const (
	maxStaticShared = 1024 // of any kernel with dynamic shared memory

	maxCluster = 8 // thread blocks

	minMajor, minMinor = 6, 0
)

// required returns the modules without which nothing works on a device: gemm.cu needs the tensor
// cores of compute capability 7.5, and copies of 8.0 to be the fastest for one row.
func required(major, minor int) []string {
	switch capability := 10*major + minor; {
	case capability >= 80:
		return []string{"pack", "gemm"}
	case capability >= 75:
		return []string{"pack", "gemm", "simt"}
	}
	return []string{"pack", "simt"}
}

// shape is a variant of the kernel in gemm.cu: 8·rows8 rows of activations, 32·strips columns for
// each warp.
type shape struct{ rows8, strips int }

var (
	fusedShapes  = []shape{{1, 2}, {1, 4}, {2, 2}, {2, 4}, {4, 2}}
	directShapes = []shape{{1, 2}, {1, 4}}
	roundShapes  = []shape{{1, 2}, {4, 2}}

	// fewShapes are all that there are before compute capability 8.0, fused and rounded.
	fewShapes = []shape{{1, 2}, {4, 2}}
)

// ringUnits is how many units the ring of a warp of gemm.cu has: stages times strips. Width 0 is the
// kernel for any mixture.
func ringUnits(s shape, width int) int {
	if s.strips == 2 && width == 0 && s.rows8 == 1 {
		return 8
	}
	return 16
}

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
		return []string{"kiln_pack", "kiln_dequantize", "kiln_gather", "kiln_permute", "kiln_permute_pairs", "kiln_copy"}
	case "gemm":
		var names []string
		fused, direct := fusedShapes, directShapes
		if i.Major < 8 {
			fused, direct = fewShapes, nil
		}
		for _, kind := range []string{"fs", "fa"} {
			for _, s := range fused {
				names = append(names, gemmName(s, 4, kind), gemmName(s, 0, kind))
			}
		}
		for _, kind := range []string{"ds", "da"} {
			for _, s := range direct {
				names = append(names, gemmName(s, 4, kind), gemmName(s, 0, kind))
			}
		}
		for _, kind := range []string{"rs", "ra"} {
			for _, s := range roundShapes {
				names = append(names, gemmName(s, 0, kind))
			}
		}
		return names
	case "simt":
		var names []string
		for _, kind := range []kernelKind{fused, rounded} {
			for _, rows := range simtRows[kind] {
				names = append(names, simtName(rows, kind))
			}
		}
		return names
	}
	var names []string
	for _, rows := range tileRows[i.Module] {
		for _, kind := range []string{"s", "a"} {
			names = append(names, tileName(i.Module, rows, 4, kind))
			if i.Module != "tall" {
				names = append(names, tileName(i.Module, rows, 0, kind))
			}
		}
	}
	return names
}

// tileRows are the heights of the tiles in wgmma.cu and in tall.cu.
var tileRows = map[string][]int{"wgmma": {16, 32, 64, 128}, "tall": {128, 192, 256}}

func tileName(module string, rows, width int, kind string) string {
	return fmt.Sprintf("kiln_%s_%d_%d_%s", map[string]string{"wgmma": "wide", "tall": "tall"}[module], rows, width, kind)
}

// simtRows are how many rows of activations the kernels in simt.cu multiply at once, ascending.
var simtRows = map[kernelKind][]int{fused: {1, 4}, rounded: {4}}

func simtName(rows int, kind kernelKind) string {
	return fmt.Sprintf("kiln_simt_%d_%s", rows, kind)
}

// plan is how a product is computed.
type plan struct {
	dense                      bool // dequantized, then with cuBLAS
	wide                       bool // with the kernel in wgmma.cu
	tall                       bool // with the kernel in tall.cu
	direct                     bool // without kiln_gather
	simt                       int  // with the kernel in simt.cu for so many rows at once
	kernel                     string
	shape                      shape
	warps, columnWarps, splits int
	columns                    int // tiles of columns
	shared                     int
	clusters, sharedTiles      int // of tall.cu: clusters of the grid, and tiles that they share
	stages                     int
}

// grid is tiles of columns times splits of the rows of the weight, and tiles of activations.
func (p plan) grid(m int) [3]uint32 {
	switch {
	case p.tall:
		return [3]uint32{uint32(2 * p.clusters), 1, 1}
	case p.wide:
		return [3]uint32{uint32(p.splits * p.tiles(m)), 1, 1}
	}
	return [3]uint32{uint32(p.splits * p.columns), uint32(p.rowTiles(m)), 1}
}

// tileRows is how many rows of activations a tile has.
func (p plan) tileRows() int {
	if p.simt > 0 {
		return p.simt
	}
	return 8 * p.shape.rows8
}

func (p plan) rowTiles(m int) int { return (m + p.tileRows() - 1) / p.tileRows() }

func (p plan) tiles(m int) int { return p.columns * p.rowTiles(m) }

func (p plan) workBytes(m int) int64 {
	if p.tall {
		return int64(p.clusters) * 4 * int64(8*p.shape.rows8*tallColumns) * 4
	}
	return int64(p.tiles(m)) * int64(p.splits) * int64(p.tileRows()*p.columnWarps*p.shape.strips*stripColumns) * 4
}

func (p plan) String() string {
	if p.dense {
		return p.kernel
	}
	if p.tall {
		return fmt.Sprintf("%s clusters %d shared tiles %d", p.kernel, p.clusters, p.sharedTiles)
	}
	return fmt.Sprintf("%s warps %d/%d splits %d", p.kernel, p.columnWarps, p.warps, p.splits)
}

// kernelKind is which kernel of gemm.cu: products with exact codes, the same with activations in
// natural order, or products with rounded weights.
type kernelKind string

const (
	fused   kernelKind = "f"
	direct  kernelKind = "d"
	rounded kernelKind = "r"
)

// make completes a plan of the kernel in gemm.cu for m rows. It uses as many warps, of 8, as shared
// memory allows.
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
		splits: max(1, min(splits, int(w.args.blockCount), maxCluster)),
	}
	for ; p.warps > 0; p.warps /= 2 {
		p.columnWarps = min(columnWarps, p.warps)
		units := ringUnits(s, width)
		ring := p.warps * units * int(w.args.maxWidth) * unitBytes
		if p.direct {
			parts := p.splits * (p.warps / p.columnWarps)
			ring += 2 * m * (w.Rows() + 8 + p.warps*blockRows*((int(w.args.blockCount)+parts-1)/parts))
		} else {
			ring += p.warps * units / s.strips * 512 * s.rows8
		}
		columns := p.columnWarps * s.strips * stripColumns
		sums := p.warps / p.columnWarps * 8 * s.rows8 * (columns + 4) * 4
		blocks := 8 * (int(w.args.blockCount) + p.splits - 1) / p.splits
		if p.shared = (blocks+127)&^127 + max(ring, sums); d.clusters && p.splits > 1 {
			p.shared += (p.splits*((2*s.rows8*columns+p.splits-1)/p.splits)*16 + 127) &^ 127
		}
		if p.shared <= d.info.SharedBytes-maxStaticShared {
			width := p.columnWarps * s.strips
			p.columns = (int(w.args.strips) + width - 1) / width
			return p, nil
		}
	}
	return p, errors.New("the device has too little shared memory")
}

// What has to be known of kernels/simt.cu.
const (
	simtShared    = 40 << 10 // of the 48 KiB that every device has: its static memory is in the rest
	maxSimtSplits = 64
)

// makeSIMT completes a plan of the kernel in simt.cu: the fewest rows at once that are enough, and so
// many splits that the device is busy to the end and activations fit.
func (d *Device) makeSIMT(m int, w *Weight, kind kernelKind) plan {
	rows := simtRows[kind][len(simtRows[kind])-1]
	for _, n := range slices.Backward(simtRows[kind]) {
		if n >= m {
			rows = n
		}
	}
	p := plan{kernel: simtName(rows, kind), simt: rows, shape: shape{strips: 1}, warps: 8, columnWarps: 1, columns: int(w.args.strips)}
	blocks, least := int(w.args.blockCount), math.MaxInt
	for splits := 1; splits <= min(maxSimtSplits, max(1, blocks)); splits++ {
		count := (blocks + splits - 1) / splits
		// One row comes from memory.
		shared, room := count*8, 4*d.info.Multiprocessors
		if rows > 1 {
			shared, room = count*(rows*2*blockRows+8), 2*d.info.Multiprocessors
		}
		// Rounds of thread blocks, each with so many blocks of rows for a warp; six are the time that a
		// thread block takes besides.
		cost := (p.tiles(m)*splits + room - 1) / room * ((count+p.warps-1)/p.warps + 6)
		if shared <= simtShared && cost < least {
			p.splits, p.shared, least = splits, shared, cost
		}
	}
	return p
}

// makeWide completes a plan of the kernel in wgmma.cu.
func (d *Device) makeWide(w *Weight, rows, splits int) (plan, error) {
	const strips = 8
	stages, tables := 9, strips*64
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
	slot := (2*(rows*64+tables+strips*int(w.args.maxWidth)*unitBytes) + 1023) &^ 1023
	p := plan{
		wide: true, kernel: tileName("wgmma", rows, width, kind), shape: shape{rows / 8, strips}, warps: 12, columnWarps: 1,
		splits:  max(1, min(splits, int(w.args.blockCount))),
		columns: (int(w.args.strips) + strips - 1) / strips,
		shared:  max(stages*slot, rows*(strips*stripColumns+4)*4),
	}
	if _, ok := d.functions[p.kernel]; !ok {
		return p, fmt.Errorf("no kernel %s for this device", p.kernel)
	}
	if p.shared > d.info.SharedBytes-maxStaticShared {
		return p, errors.New("the device has too little shared memory")
	}
	return p, nil
}

// What has to be known of kernels/tall.cu.
const (
	tallColumns   = 128     // of a thread block
	tallLines     = 8 * 512 // bytes in which the warps order their results
	maxTallStages = 16
)

// makeTall completes a plan of the kernel in tall.cu with at most so many clusters that share so
// many tiles.
func (d *Device) makeTall(m int, w *Weight, rows, clusters, sharedTiles int) (plan, error) {
	if w.width != 4 {
		return plan{}, errors.New("the kernel is for a width of four")
	}
	kind, tables := "s", tallColumns*2
	if w.args.zeros != 0 {
		kind, tables = "a", 2*tables
	}
	p := plan{
		tall: true, kernel: tileName("tall", rows, 4, kind), shape: shape{rows / 8, 8}, warps: 12, columnWarps: 1, splits: 1,
		columns: (int(w.args.strips) + 7) / 8, clusters: clusters, sharedTiles: sharedTiles,
	}
	slot := (2*(rows*64+tables+tallColumns/stripColumns*int(w.args.maxWidth)*unitBytes) + 1023) &^ 1023
	p.stages = min(maxTallStages, (d.info.SharedBytes-maxStaticShared-tallLines)/slot)
	p.shared = p.stages*slot + tallLines
	if _, ok := d.functions[p.kernel]; !ok {
		return p, fmt.Errorf("no kernel %s for this device", p.kernel)
	}
	if p.stages < 2 {
		return p, errors.New("the device has too little shared memory")
	}
	return p, nil
}

// tallPlans returns the ways to divide a product among clusters: whole tiles; the tiles that
// remain, alone or with one more for each, in even shares; and few tiles in parts.
func (d *Device) tallPlans(m int, w *Weight) []plan {
	var out []plan
	most := d.room(plan{wide: true, splits: 2}, 1) / 2
	units := (int(w.args.blockCount) + 3) / 4
	for _, rows := range tileRows["tall"] {
		tiles := (int(w.args.strips) + 7) / 8 * ((m + rows - 1) / rows)
		add := func(clusters, sharedTiles int) {
			if sharedTiles > 0 && (sharedTiles*units < clusters || sharedTiles > tiles) {
				return
			}
			if p, err := d.makeTall(m, w, rows, clusters, sharedTiles); err == nil {
				out = append(out, p)
			}
		}
		add(min(tiles, most), 0)
		if rest := tiles % most; tiles > most && rest > 0 {
			add(most, rest)
			add(most, rest+most)
		}
		if tiles < most {
			for n := 2; n*tiles <= most && n <= units; n++ {
				add(n*tiles, tiles)
			}
			if most%tiles != 0 {
				add(most, tiles)
			}
		}
	}
	return out
}

// The model of a product's time, in µs, fitted to all plans of 16 sizes on an H200 (see
// testdata/h200.json). It orders plans; it does not tell times.
var (
	// blockTime is what a warp of gemm.cu needs for 32 rows: at least, and for each thread block
	// that shares the multiprocessor.
	blockTime = map[shape]struct{ least, shared float64 }{
		{1, 2}: {0.312, 0.106}, {1, 4}: {0.563, 0.348}, {2, 2}: {0.204, 0.436}, {2, 4}: {0.402, 0.482}, {4, 2}: {0.527, 0.478},
	}
	// mixedFactor is what other widths than four, or a mixture, add to that.
	mixedFactor = map[shape]float64{{1, 2}: 1.3, {1, 4}: 1.6, {2, 2}: 0.99, {2, 4}: 1.17, {4, 2}: 0.84}
	// stepTime is what a tile of wgmma.cu needs for 32 rows of four bits, and of others; tallTime
	// what one of tall.cu needs.
	stepTime = map[int][2]float64{16: {0.175, 0.34}, 32: {0.173, 0.4}, 64: {0.247, 0.4}, 128: {0.365, 0.44}}
	tallTime = map[int]float64{128: 0.232, 192: 0.305, 256: 0.375}
	// clusterRoom is how many multiprocessors, of 132, clusters of a size find room on: they must
	// be near each other.
	clusterRoom = [maxCluster + 1]int{1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}
)

// room returns how many thread blocks of a plan run at once.
func (d *Device) room(p plan, perProcessor int) int {
	near := clusterRoom[1]
	if p.wide || d.clusters {
		near = clusterRoom[p.splits]
	}
	return max(1, near*perProcessor*d.info.Multiprocessors/clusterRoom[1])
}

// estimate is what the model says of a plan.
func (d *Device) estimate(m int, w *Weight, p plan) float64 {
	count := p.tiles(m) * p.splits
	times := func(n, of int) float64 { return float64((n + of - 1) / of) }
	if p.wide || p.tall {
		blocks := float64(w.args.blockCount)
		cost := -1.5
		if w.moves() { // kiln_permute
			cost = 2.1e-6 * float64(m) * float64(w.args.rows)
		}
		if p.wide {
			step := stepTime[8*p.shape.rows8][0]
			if w.width != 4 { // thread blocks share the others evenly
				four := float64(w.args.fours) / blocks
				step = four*step + (1-four)*stepTime[8*p.shape.rows8][1]
			}
			cost += times(count, d.room(p, 1)) * (5.55 + times(int(w.args.blockCount), p.splits)*step)
			if p.splits > 1 {
				cost += 0.002 * float64(p.splits*p.shape.rows8)
			}
			return cost
		}
		step, whole := tallTime[8*p.shape.rows8], times(p.tiles(m)-p.sharedTiles, p.clusters)
		cost += whole * (2.63 + blocks*step)
		if share := float64(p.sharedTiles) / float64(p.clusters); share > 0 {
			cost += 18 + share*(0.062*float64(p.shape.rows8)+blocks*step)
			if share < 1 && p.clusters%p.sharedTiles != 0 {
				cost += 4 // some tiles have one part more
			}
		}
		return cost
	}
	perProcessor := min(registerRoom(p.shape, w.args.zeros != 0), (d.info.SharedBytes+1024)/(p.shared+1024))
	perProcessor = max(1, perProcessor)
	busy := min(perProcessor, (count+d.info.Multiprocessors-1)/d.info.Multiprocessors)
	t := blockTime[p.shape]
	block := max(t.least, t.shared*float64(busy))
	zeros := 1.3 // what zero points add to a block
	if p.shape.strips > 2 {
		zeros = 0.57
	} else if p.shape.rows8 > 2 {
		zeros = 0.87
	}
	if w.width != 4 {
		block *= mixedFactor[p.shape]
	}
	if w.args.zeros != 0 {
		block *= zeros
	}
	waves := times(count, d.room(p, perProcessor))
	if waves > 2 && p.splits > 1 {
		return math.Inf(1)
	}
	work := waves * times(int(w.args.blockCount), p.splits*(p.warps/p.columnWarps)) * block
	memory := float64(w.args.stride) * float64(w.args.strips) * unitBytes / 4.24e6
	cost := 2.49 + 1.61*(waves-1) + max(work, memory) + 0.4*min(work, memory) + 0.0674*float64(p.shape.rows8*p.shape.strips)
	switch {
	case p.direct && p.shape.strips > 2:
		cost += -0.0388 + 0.0485*memory
	case p.direct:
		cost += 0.0838 + 0.254*memory
	case w.args.perm != 0:
		cost += 1.32
	}
	if p.splits > 1 {
		cost += 0.233 + 0.105*float64(p.splits)
		if !d.clusters {
			cost++
		}
	}
	return cost
}

// registerRoom is how many thread blocks of gemm.cu registers allow on a multiprocessor.
func registerRoom(s shape, zeros bool) int {
	if s.rows8*s.strips > 4 || s.strips > 2 && zeros {
		return 1
	}
	return 2
}

// densePlan dequantizes and leaves the rest to cuBLAS.
var densePlan = plan{dense: true, kernel: "kiln_dequantize and cuBLAS"}

// denser reports whether that is faster than the kernels here, as it was on an H200, with tall.cu
// and without.
func (d *Device) denser(m int, w *Weight) bool {
	size := int64(w.args.rows) * int64(w.args.columns)
	switch {
	case d.functions[gemmName(fewShapes[0], 4, "fs")] == 0:
		return m > 32
	case d.functions[gemmName(fusedShapes[1], 4, "fs")] == 0:
		return m > 128
	}
	if d.functions[tileName("tall", 256, 4, "s")] == 0 {
		return m >= 2048 || m >= 1024 && size < 64<<20
	}
	if w.width != 4 { // for which there is no tall.cu
		return m >= 4096 || m >= 2048 && (size < 32<<20 || w.args.rows > w.args.columns) || m >= 1024 && size < 32<<20
	}
	// Dequantized, no activations are moved.
	return m >= 4096 && size < 128<<20 || m >= 2048 && size < 32<<20 && w.moves()
}

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
	if w.d.blas != nil && w.d.denser(m, w) && path != quant.PathFused && !bias {
		p = densePlan
	}
	if w.plans == nil || len(w.plans) == maxPlans {
		w.plans = map[planKey]plan{}
	}
	w.plans[key] = p
	return p, nil
}

// choose returns the plan for a product of m rows. aligned says that the activations are, to 16
// bytes.
func (d *Device) choose(m int, w *Weight, path quant.Path, aligned bool) (plan, error) {
	plans := d.plans(m, w, path, aligned && m == 1, fitting)
	if len(plans) == 0 {
		return plan{}, errors.New("the device has too little shared memory")
	}
	best, least := plans[0], math.Inf(1)
	for _, p := range plans {
		if cost := d.estimate(m, w, p); cost < least {
			best, least = p, cost
		}
	}
	return best, nil
}

// fitting returns the shapes that need no more rows than others for m, and read the weight no more
// often.
func fitting(shapes []shape, m int) []shape {
	best := slices.MaxFunc(shapes, func(a, b shape) int { return cmp.Compare(a.rows8, b.rows8) }).rows8
	for _, s := range shapes {
		if 8*s.rows8 >= m {
			best = min(best, s.rows8)
		}
	}
	return slices.DeleteFunc(slices.Clone(shapes), func(s shape) bool { return s.rows8 != best })
}

// plans returns ways to compute a product of m rows, all but the dense one, with the shapes that
// are selected.
func (d *Device) plans(m int, w *Weight, path quant.Path, mayBeDirect bool, selected func([]shape, int) []shape) []plan {
	var out []plan
	tensorCores := d.functions[gemmName(fewShapes[0], 4, "fs")] != 0
	if d.functions[simtName(1, fused)] != 0 && (m == 1 || !tensorCores) {
		if path != quant.PathReconstruct {
			return []plan{d.makeSIMT(m, w, fused)}
		} else if !tensorCores {
			return []plan{d.makeSIMT(m, w, rounded)}
		}
	}
	gemm := func(kind kernelKind, shapes ...shape) {
		shapes = slices.DeleteFunc(slices.Clone(shapes), func(s shape) bool {
			return d.functions[gemmName(s, 0, string(kind)+"s")] == 0
		})
		if len(shapes) == 0 {
			return
		}
		for _, s := range selected(shapes, m) {
			for _, columnWarps := range []int{1, 2, 4} {
				for splits := 1; splits <= maxCluster; splits++ {
					if p, err := d.make(m, w, s, kind, columnWarps, splits); err == nil && p.splits == splits && p.columnWarps == columnWarps {
						out = append(out, p)
					}
				}
			}
		}
	}
	if path == quant.PathReconstruct {
		gemm(rounded, roundShapes...)
	} else {
		gemm(fused, fusedShapes...)
	}
	if path != quant.PathReconstruct && mayBeDirect && m <= 8 && w.order != 0 {
		gemm(direct, directShapes...)
	}
	if path != quant.PathFused {
		out = append(out, d.tallPlans(m, w)...)
		for _, rows := range tileRows["wgmma"] {
			for splits := 1; splits <= maxCluster; splits++ {
				if p, err := d.makeWide(w, rows, splits); err == nil && p.splits == splits {
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// maxCandidates is how many plans Tune measures for one number of rows.
const maxCandidates = 40

// candidates returns the plans that the model likes best, to compare.
func (d *Device) candidates(m int, w *Weight) []plan {
	all := d.plans(m, w, quant.PathAuto, true, fitting)
	cost := make(map[plan]float64, len(all))
	for _, p := range all {
		cost[p] = d.estimate(m, w, p)
	}
	slices.SortStableFunc(all, func(a, b plan) int { return cmp.Compare(cost[a], cost[b]) })
	all = all[:min(len(all), maxCandidates)]
	if d.blas != nil && m >= 128 {
		all = append(all, densePlan)
	}
	return all
}

// ways returns all plans, sensible or not, and first one of gemm.cu with rounded weights.
func (d *Device) ways(m int, w *Weight) []plan {
	every := func(shapes []shape, _ int) []shape { return shapes }
	out := d.plans(m, w, quant.PathReconstruct, false, every)
	out = append(out[:min(1, len(out))], d.plans(m, w, quant.PathAuto, true, every)...)
	if d.blas != nil {
		out = append(out, densePlan)
	}
	return out
}
