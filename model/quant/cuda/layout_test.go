package cuda

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

// matrices returns one of each kind that the layout treats in its own way.
func matrices(t testing.TB) map[string]*quant.QMatrix {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	out := map[string]*quant.QMatrix{}
	exl2 := func(name string, n int, groups ...quant.Group) {
		m, err := quant.LoadEXL2(quanttest.EXL2(rng, n, groups), "", quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		out[name] = m
	}
	gptq := func(name string, k, n, bits, rows int, actOrder bool) {
		opts := quant.GPTQOptions{GroupSize: rows}
		m, err := quant.LoadGPTQ(quanttest.GPTQ(rng, k, n, bits, rows, actOrder), "", opts)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = m
	}
	exl2("one width", 96, quant.Group{Bits: 4, Rows: 128}, quant.Group{Bits: 4, Rows: 128})
	exl2("all widths", 288, quant.Group{Bits: 8, Rows: 32}, quant.Group{Bits: 6, Rows: 64}, quant.Group{Bits: 5, Rows: 32},
		quant.Group{Bits: 4, Rows: 96}, quant.Group{Bits: 3, Rows: 32}, quant.Group{Bits: 2, Rows: 64})
	gptq("sequential", 256, 64, 4, 128, false)
	gptq("act-order", 256, 64, 4, 64, true)
	gptq("8 bit", 128, 32, 8, 64, false)
	return out
}

func TestLayout(t *testing.T) {
	for name, m := range matrices(t) {
		t.Run(name, func(t *testing.T) {
			l, err := newLayout(m)
			if err != nil {
				t.Fatal(err)
			}
			groups := m.Groups()
			var seen []int32
			offset := 0
			for i, b := range l.blocks {
				bits := int(b.place & 15)
				group, rest := int(b.part&0xFFFF), int(b.part>>16)
				if bits != groups[group].Bits || int(b.place>>4) != offset {
					t.Fatalf("block %d has width %d at %d: want %d at %d", i, bits, b.place>>4, groups[group].Bits, offset)
				}
				if last := l.blocks[i+rest-1]; int(last.part) != 1<<16|group || i+rest < len(l.blocks) && int(l.blocks[i+rest].part&0xFFFF) == group {
					t.Fatalf("block %d says that group %d ends %d blocks later", i, group, rest)
				}
				offset += bits
			}
			if offset != l.stride {
				t.Errorf("stride is %d: the blocks add up to %d", l.stride, offset)
			}
			natural := m.Perm()
			stored := 0
			for row, bit := range l.bits {
				if bit < 0 {
					continue // padding
				}
				if int(bit) != m.CodeBit(stored) {
					t.Fatalf("row %d starts at bit %d: want %d", row, bit, m.CodeBit(stored))
				}
				if l.perm != nil {
					seen = append(seen, l.perm[row])
					if l.perm[row] != natural[stored] {
						t.Fatalf("row %d is natural row %d: want %d", row, l.perm[row], natural[stored])
					}
				}
				stored++
			}
			if stored != m.Rows() {
				t.Errorf("%d rows in the layout: want %d", stored, m.Rows())
			}
			slices.Sort(seen)
			if l.perm != nil && len(slices.Compact(seen)) != m.Rows() {
				t.Error("a natural row is missing")
			}
			if (l.zeros != nil) != (m.Format() == quant.GPTQ) {
				t.Errorf("zero points: %v", l.zeros != nil)
			}
		})
	}
}

// TestPlace holds that the columns of a strip have 32 places, four next to each other for each
// lane.
func TestPlace(t *testing.T) {
	seen := map[int]bool{}
	for c := range 64 {
		p := place(c)
		if p/32 != c/32 || seen[p] {
			t.Errorf("column %d is at %d", c, p)
		}
		if lane := c % 8; p%32/4 != lane {
			t.Errorf("column %d is at %d, not with lane %d", c, p, lane)
		}
		seen[p] = true
	}
}

func TestRunsOn(t *testing.T) {
	for _, test := range []struct {
		image        Image
		major, minor int
		want         bool
	}{
		{Image{Major: 9}, 9, 0, true},
		{Image{Major: 9}, 8, 9, false},
		{Image{Major: 9}, 10, 0, false},
		{Image{Major: 8, Minor: 6}, 8, 9, true},
		{Image{Major: 8, Minor: 6}, 8, 0, false},
		{Image{Major: 9, Specific: true}, 9, 0, true},
		{Image{Major: 9, Specific: true}, 9, 1, false},
		{Image{Major: 8, PTX: true}, 12, 0, true},
		{Image{Major: 8, PTX: true}, 7, 5, false},
		{Image{Major: 7, Minor: 5, PTX: true}, 7, 0, false},
		{Image{Major: 7, Minor: 5, PTX: true}, 7, 5, true},
		{Image{Major: 6, PTX: true}, 6, 1, true},
	} {
		if got := test.image.runsOn(test.major, test.minor); got != test.want {
			t.Errorf("%+v on %d.%d: %v", test.image, test.major, test.minor, got)
		}
	}
}

// TestPlan checks for devices with much and with little shared memory that each product has a
// kernel, fits, and covers the whole result.
func TestPlan(t *testing.T) {
	for _, info := range []Info{
		{Name: "sm_60", Major: 6, Multiprocessors: 56, SharedBytes: 48 << 10},
		{Name: "sm_61", Major: 6, Minor: 1, Multiprocessors: 10, SharedBytes: 48 << 10},
		{Name: "sm_70", Major: 7, Multiprocessors: 80, SharedBytes: 96 << 10},
		{Name: "sm_75", Major: 7, Minor: 5, Multiprocessors: 40, SharedBytes: 64 << 10},
		{Name: "sm_80", Major: 8, Multiprocessors: 108, SharedBytes: 163 << 10},
		{Name: "sm_86", Major: 8, Minor: 6, Multiprocessors: 84, SharedBytes: 99 << 10},
		{Name: "sm_90", Major: 9, Multiprocessors: 132, SharedBytes: 227 << 10},
	} {
		d := &Device{info: info, functions: map[string]uintptr{}, clusters: info.Major >= 9}
		modules, _ := targets(info.Major, info.Minor)
		for _, module := range modules {
			for _, name := range (Image{Module: module, Major: info.Major, Minor: info.Minor}).kernels() {
				d.functions[name] = 1
			}
		}
		for name, m := range matrices(t) {
			l, err := newLayout(m)
			if err != nil {
				t.Fatal(err)
			}
			w := &Weight{d: d, width: l.width, args: weightArgs{
				rows: int32(m.Rows()), columns: int32(m.Cols()), blockCount: int32(len(l.blocks)), strips: int32(l.strips),
				stride: uint32(l.stride), maxWidth: int32(l.widest), zeros: uintptr(len(l.zeros)), perm: uintptr(len(l.perm)),
			}, order: uintptr(len(l.order))}
			for _, rows := range []int{1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 1000} {
				for _, path := range []quant.Path{quant.PathAuto, quant.PathFused, quant.PathReconstruct} {
					t.Run(fmt.Sprintf("%s/%s/%d/%v", info.Name, name, rows, path), func(t *testing.T) {
						p, err := d.choose(rows, w, path, true)
						if err != nil {
							t.Fatal(err)
						}
						if d.functions[p.kernel] == 0 {
							t.Errorf("there is no kernel %s", p.kernel)
						}
						if p.shared > info.SharedBytes-maxStaticShared {
							t.Errorf("%v needs %d bytes of shared memory", p, p.shared)
						}
						width := p.columnWarps * p.shape.strips
						if p.columns*width < l.strips || p.rowTiles(rows)*p.tileRows() < rows || p.splits < 1 {
							t.Errorf("%v does not cover %d rows and %d strips", p, rows, l.strips)
						}
						if path == quant.PathFused && (p.wide || p.tall) {
							t.Errorf("%v rounds weights", p)
						}
					})
				}
			}
		}
	}
}

// TestMeasuredPlans holds that the model picks plans that were among the fastest of all on an H200,
// on 2026-11-16 (kiln-gpu bench --tune), and on 2026-11-15 for up to 16 rows of other sizes. The file
// has those within 30 % of the fastest.
func TestMeasuredPlans(t *testing.T) {
	text, err := os.ReadFile("testdata/h200.json")
	if err != nil {
		t.Fatal(err)
	}
	var measured []struct {
		K, N, M      int
		Format       string
		Microseconds map[string]float64
	}
	if err := json.Unmarshal(text, &measured); err != nil {
		t.Fatal(err)
	}
	d := &Device{info: Info{Major: 9, Multiprocessors: 132, SharedBytes: 227 << 10}, functions: map[string]uintptr{}, clusters: true}
	for _, module := range []string{"pack", "gemm", "wgmma", "tall"} {
		for _, name := range (Image{Module: module, Major: 9}).kernels() {
			d.functions[name] = 1
		}
	}
	var lost float64
	for _, x := range measured {
		w := &Weight{d: d, width: 4, order: 1, args: weightArgs{
			rows: int32(x.K), columns: int32(x.N), blockCount: int32(x.K / 32), strips: int32(x.N / 32),
			stride: uint32(x.K / 8), maxWidth: 4, perm: 1,
		}}
		switch x.Format {
		case "gptq":
			w.order, w.args.perm, w.args.zeros = 0, 0, 1
		case "exl2-6":
			w.width, w.args.maxWidth, w.args.stride = 6, 6, uint32(x.K/32*6)
		case "exl2-8/5/4":
			w.width, w.args.maxWidth, w.args.stride, w.args.fours = 0, 8, uint32(x.K/8*9/8), int32(x.K/40)
		}
		p, err := d.choose(x.M, w, quant.PathAuto, true)
		if err != nil {
			t.Fatal(err)
		}
		least := math.Inf(1)
		for _, us := range x.Microseconds {
			least = min(least, us)
		}
		us, ok := x.Microseconds[p.String()]
		if !ok || us > 1.25*least {
			t.Errorf("%d×%d %s, %d rows: %v takes %.2f µs: the fastest takes %.2f", x.K, x.N, x.Format, x.M, p, us, least)
		}
		lost += us/least - 1
	}
	if mean := lost / float64(len(measured)); mean > 0.015 {
		t.Errorf("the plans take %.1f %% longer than the fastest", 100*mean)
	} else {
		t.Logf("the plans take %.1f %% longer than the fastest, on average over %d products", 100*mean, len(measured))
	}
}

// TestArguments holds that the structures have the sizes of those in the kernels.
func TestArguments(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"Weight": {unsafe.Sizeof(weightArgs{}), 72}, "Gemm": {unsafe.Sizeof(gemmArgs{}), 136},
		"Wide": {unsafe.Sizeof(wideArgs{}), 256}, "Tall": {unsafe.Sizeof(tallArgs{}), 320},
	} {
		if size[0] != size[1] {
			t.Errorf("%s has %d bytes, want %d", name, size[0], size[1])
		}
	}
}
