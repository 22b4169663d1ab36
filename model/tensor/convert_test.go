package tensor_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/model/tensor"
)

// format describes a small binary float for the slow reference.
type format struct {
	mantissa, bias, maxExp int
	inf, nan               uint16
}

var (
	half  = format{mantissa: 10, bias: 15, maxExp: 15, inf: 0x7C00, nan: 0x7E00}
	brain = format{mantissa: 7, bias: 127, maxExp: 127, inf: 0x7F80, nan: 0x7FC0}
)

// round is the reference: it scales |f| to units of the last place with exact
// arithmetic, and rounds the quotient to an even integer.
func (t format) round(f float32) uint16 {
	var sign uint16
	if math.Signbit(float64(f)) {
		sign = 0x8000
	}
	switch {
	case math.IsNaN(float64(f)):
		return sign | t.nan
	case math.IsInf(float64(f), 0):
		return sign | t.inf
	case f == 0:
		return sign
	}
	v := new(big.Rat).SetFloat64(math.Abs(float64(f)))
	_, exp := math.Frexp(math.Abs(float64(f)))
	exp = max(exp-1, 1-t.bias)
	unit := new(big.Rat).SetInt64(1)
	if e := exp - t.mantissa; e < 0 {
		unit.SetFrac(big.NewInt(1), new(big.Int).Lsh(big.NewInt(1), uint(-e)))
	} else {
		unit.SetInt(new(big.Int).Lsh(big.NewInt(1), uint(e)))
	}
	q := v.Quo(v, unit)
	n, rest := new(big.Int).QuoRem(q.Num(), q.Denom(), new(big.Int))
	switch rest.Lsh(rest, 1).Cmp(q.Denom()) {
	case 1:
		n.Add(n, big.NewInt(1))
	case 0:
		n.Add(n, big.NewInt(int64(n.Bit(0))))
	}
	// A mantissa that reaches the next power of two carries into the exponent.
	bits := n.Int64() + int64(exp+t.bias-1)<<t.mantissa
	return sign | uint16(min(bits, int64(t.inf)))
}

// value is the reference for widening.
func (t format) value(b uint16) float32 {
	sign := 1.0
	if b&0x8000 != 0 {
		sign = -1
	}
	mag := b & 0x7FFF
	switch {
	case mag > t.inf:
		return float32(math.NaN())
	case mag == t.inf:
		return float32(math.Inf(int(sign)))
	}
	exp, man := int(mag>>t.mantissa), int(mag)&(1<<t.mantissa-1)
	if exp == 0 {
		exp = 1
	} else {
		man |= 1 << t.mantissa
	}
	return float32(math.Copysign(math.Ldexp(float64(man), exp-t.bias-t.mantissa), sign))
}

func equalBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func TestEveryFloat16(t *testing.T) {
	for i := range 1 << 16 {
		h := tensor.Float16(i)
		f := h.Float32()
		if want := half.value(uint16(i)); !equalBits(f, want) {
			t.Fatalf("%04x.Float32() = %v, want %v", i, f, want)
		}
		back := tensor.Float16FromFloat32(f)
		switch {
		case h.IsNaN():
			if f == f {
				t.Fatalf("%04x is a NaN and became %v", i, f)
			}
			if want := h&0x8000 | 0x7E00; back != want {
				t.Fatalf("NaN %04x came back as %04x, want %04x", i, back, want)
			}
			if got := math.Float32bits(f) >> 13 & 0x3FF; got != uint32(i&0x3FF) {
				t.Fatalf("NaN %04x: payload %x", i, got)
			}
		case back != h:
			t.Fatalf("%04x came back as %04x", i, back)
		}
		if got := math.IsInf(float64(f), 0); got != h.IsInf() {
			t.Fatalf("%04x: IsInf = %v", i, h.IsInf())
		}
	}
}

func TestEveryBFloat16(t *testing.T) {
	for i := range 1 << 16 {
		b := tensor.BFloat16(i)
		f := b.Float32()
		if want := brain.value(uint16(i)); !equalBits(f, want) {
			t.Fatalf("%04x.Float32() = %v, want %v", i, f, want)
		}
		if got := math.IsInf(float64(f), 0); got != b.IsInf() {
			t.Fatalf("%04x: IsInf = %v", i, b.IsInf())
		}
		back, want := tensor.BFloat16FromFloat32(f), b
		if b.IsNaN() {
			want = b&0x8000 | 0x7FC0
		}
		if back != want {
			t.Fatalf("%04x came back as %04x, want %04x", i, back, want)
		}
		if got, want := b.Float16(), tensor.Float16(half.round(f)); got != want {
			t.Fatalf("%04x.Float16() = %04x, want %04x", i, got, want)
		}
	}
}

func TestFloat16FromFloat32(t *testing.T) {
	tests := []struct {
		name string
		bits uint32
		want tensor.Float16
	}{
		{"tie to even, down", 0x3f801000, 0x3c00},
		{"tie to even, up", 0x3f803000, 0x3c02},
		{"above a tie", 0x3f801001, 0x3c01},
		{"below a tie", 0x3f800fff, 0x3c00},
		{"largest finite", 0x477fefff, 0x7bff},
		{"first infinite", 0x477ff000, 0x7c00},
		{"65536", 0x47800000, 0x7c00},
		{"largest float32", 0x7f7fffff, 0x7c00},
		{"infinity", 0xff800000, 0xfc00},
		{"half of the smallest", 0x33000000, 0x0000},
		{"above it", 0x33000001, 0x0001},
		{"1.5 of the smallest", 0x33c00000, 0x0002},
		{"largest subnormal", 0x387fc000, 0x03ff},
		{"rounds up to normal", 0x387fe000, 0x0400},
		{"below that", 0x387fdfff, 0x03ff},
		{"smallest normal", 0x38800000, 0x0400},
		{"negative zero", 0x80000000, 0x8000},
		{"smallest float32", 0x80000001, 0x8000},
		{"signalling NaN", 0x7f800001, 0x7e00},
		{"negative NaN with payload", 0xffd55555, 0xfe00},
	}
	for _, tt := range tests {
		if got := tensor.Float16FromFloat32(math.Float32frombits(tt.bits)); got != tt.want {
			t.Errorf("%s: %08x: got %04x, want %04x", tt.name, tt.bits, got, tt.want)
		}
	}
	for b, want := range map[tensor.BFloat16]tensor.Float16{0x4780: 0x7c00, 0x3301: 0x0001, 0x3880: 0x0400, 0x0001: 0} {
		if got := b.Float16(); got != want {
			t.Errorf("BF16 %04x: got %04x, want %04x", b, got, want)
		}
	}
}

// boundaries are float32 patterns near every place where something changes: all
// exponents, with mantissas around ties of both target formats.
func boundaries() []uint32 {
	var all []uint32
	for exp := range uint32(512) {
		for _, m := range []uint32{
			0, 1, 2, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff,
			0x10000, 0x17fff, 0x18000, 0x18001, 0x3fffff, 0x400000, 0x400001, 0x600000, 0x7fdfff, 0x7fe000, 0x7feffe,
			0x7fefff, 0x7ff000, 0x7ff001, 0x7f7fff, 0x7f8000, 0x7f8001, 0x7fffff,
		} {
			all = append(all, exp<<23|m)
		}
	}
	return all
}

func TestRoundAgainstReference(t *testing.T) {
	patterns := boundaries()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		patterns = append(patterns, rng.Uint32())
		// Denser where float16 are subnormal or end.
		patterns = append(patterns, (102+rng.Uint32N(12))<<23|rng.Uint32()&0x807f_ffff, (141+rng.Uint32N(3))<<23|rng.Uint32()&0x807f_ffff)
	}
	for _, p := range patterns {
		f := math.Float32frombits(p)
		if got, want := tensor.Float16FromFloat32(f), half.round(f); uint16(got) != want {
			t.Errorf("Float16FromFloat32(%08x) = %04x, want %04x", p, got, want)
		}
		if got, want := tensor.BFloat16FromFloat32(f), brain.round(f); uint16(got) != want {
			t.Errorf("BFloat16FromFloat32(%08x) = %04x, want %04x", p, got, want)
		}
	}
}

// TestSlices compares the group-wise conversions with the scalar ones at every
// length and alignment of special values within a group.
func TestSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		special := rapid.SampledFrom(boundaries())
		plain := rapid.Custom(func(t *rapid.T) uint32 { return math.Float32bits(rapid.Float32Range(-4, 4).Draw(t, "f")) })
		patterns := rapid.SliceOfN(rapid.OneOf(plain, plain, special, rapid.Uint32()), 0, 40).Draw(t, "patterns")
		checkSlices(t, patterns)
	})
	checkSlices(t, boundaries())
}

func checkSlices(t rapid.TB, patterns []uint32) {
	t.Helper()
	n := len(patterns)
	src32, src16 := make([]byte, 4*n), make([]byte, 2*n)
	floats := make([]float32, n)
	wantF16, wantBF16, wantCross := make([]byte, 2*n), make([]byte, 2*n), make([]byte, 2*n)
	wantWideF, wantWideB := make([]byte, 4*n), make([]byte, 4*n)
	var lossF, lossB, lossC tensor.Loss
	for i, p := range patterns {
		f := math.Float32frombits(p)
		h, b := tensor.Float16FromFloat32(f), tensor.BFloat16FromFloat32(f)
		low := uint16(p>>16 ^ p)
		floats[i] = f
		binary.LittleEndian.PutUint32(src32[4*i:], p)
		binary.LittleEndian.PutUint16(src16[2*i:], low)
		binary.LittleEndian.PutUint16(wantF16[2*i:], uint16(h))
		binary.LittleEndian.PutUint16(wantBF16[2*i:], uint16(b))
		cross := tensor.BFloat16(low)
		binary.LittleEndian.PutUint16(wantCross[2*i:], uint16(cross.Float16()))
		binary.LittleEndian.PutUint32(wantWideF[4*i:], math.Float32bits(tensor.Float16(low).Float32()))
		binary.LittleEndian.PutUint32(wantWideB[4*i:], math.Float32bits(cross.Float32()))
		count(&lossF, f != f, h.IsInf() && !math.IsInf(float64(f), 0))
		count(&lossB, f != f, b.IsInf() && !math.IsInf(float64(f), 0))
		count(&lossC, cross.IsNaN(), cross.Float16().IsInf() && !cross.IsInf())
	}
	check := func(name string, got, want []byte, loss, wantLoss tensor.Loss) {
		t.Helper()
		if i := firstDiff(got, want); i >= 0 {
			t.Fatalf("%s: byte %d of %d (%08x)", name, i, len(want), patterns[i*n/len(want)])
		}
		if loss != wantLoss {
			t.Fatalf("%s: loss %+v, want %+v", name, loss, wantLoss)
		}
	}
	dst16, dst32 := make([]byte, 2*n), make([]byte, 4*n)
	wide := make([]float32, n)
	loss := tensor.F32ToF16(dst16, src32)
	check("F32ToF16", dst16, wantF16, loss, lossF)
	loss = tensor.EncodeF16(dst16, floats)
	check("EncodeF16", dst16, wantF16, loss, lossF)
	loss = tensor.F32ToBF16(dst16, src32)
	check("F32ToBF16", dst16, wantBF16, loss, lossB)
	loss = tensor.EncodeBF16(dst16, floats)
	check("EncodeBF16", dst16, wantBF16, loss, lossB)
	loss = tensor.BF16ToF16(dst16, src16)
	check("BF16ToF16", dst16, wantCross, loss, lossC)
	tensor.F16ToF32(dst32, src16)
	check("F16ToF32", dst32, wantWideF, loss, loss)
	tensor.DecodeF16(wide, src16)
	tensor.EncodeF32(dst32, wide)
	check("DecodeF16", dst32, wantWideF, loss, loss)
	tensor.BF16ToF32(dst32, src16)
	check("BF16ToF32", dst32, wantWideB, loss, loss)
	tensor.DecodeBF16(wide, src16)
	tensor.EncodeF32(dst32, wide)
	check("DecodeBF16", dst32, wantWideB, loss, loss)
	tensor.DecodeF32(wide, src32)
	tensor.EncodeF32(dst32, wide)
	check("DecodeF32", dst32, src32, loss, loss)

	// In place, where the doc comments allow it.
	place := append([]byte(nil), src32...)
	tensor.F32ToF16(place[:2*n], place)
	check("F32ToF16 in place", place[:2*n], wantF16, loss, loss)
	place = append(place[:0], src32...)
	tensor.F32ToBF16(place[:2*n], place)
	check("F32ToBF16 in place", place[:2*n], wantBF16, loss, loss)
	place = append(place[:0], src16...)
	tensor.BF16ToF16(place, place)
	check("BF16ToF16 in place", place, wantCross, loss, loss)
}

func count(l *tensor.Loss, nan, overflow bool) {
	if nan {
		l.NaN++
	}
	if overflow {
		l.Overflow++
	}
}

func firstDiff(a, b []byte) int {
	for i := range b {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func TestToF16(t *testing.T) {
	tests := []struct {
		from tensor.DType
		src  []byte
		want []byte
		loss tensor.Loss
	}{
		{tensor.F16, []byte{1, 0x7c, 0, 0x3c}, []byte{1, 0x7c, 0, 0x3c}, tensor.Loss{}}, // a NaN stays as it is
		{tensor.BF16, []byte{0x80, 0x3f, 0x80, 0x47}, []byte{0, 0x3c, 0, 0x7c}, tensor.Loss{Overflow: 1}},
		{tensor.F32, []byte{0, 0, 0x80, 0x3f, 1, 0, 0x80, 0xff}, []byte{0, 0x3c, 0, 0xfe}, tensor.Loss{NaN: 1}},
	}
	for _, tt := range tests {
		dst := make([]byte, len(tt.want))
		loss, err := tensor.ToF16(dst, tt.src, tt.from)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, dst); diff != "" {
			t.Errorf("%v: (-want +got)\n%s", tt.from, diff)
		}
		if got := loss.Add(tensor.Loss{NaN: 1}); got != tt.loss.Add(tensor.Loss{NaN: 1}) {
			t.Errorf("%v: loss %+v, want %+v", tt.from, loss, tt.loss)
		}
	}
	if _, err := tensor.ToF16(nil, nil, tensor.F64); err == nil || err.Error() != "no conversion from F64 to F16" {
		t.Errorf("F64: %v", err)
	}
}

func TestLengthMismatchPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"short dst": func() { tensor.F32ToF16(make([]byte, 2), make([]byte, 8)) },
		"odd":       func() { tensor.BF16ToF16(make([]byte, 3), make([]byte, 3)) },
		"floats":    func() { tensor.DecodeF16(make([]float32, 3), make([]byte, 4)) },
		"copy":      func() { _, _ = tensor.ToF16(make([]byte, 2), make([]byte, 4), tensor.F16) },
		"map":       func() { new(tensor.F16Map).Apply(make([]byte, 3)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestRoundTrips(t *testing.T) {
	for x, want := range map[tensor.Float16]tensor.Float16{
		0x8000: 0x0000, 0x0001: 0x0000, 0x1000: 0x0000, 0x1001: 0x1400, 0x9000: 0x9000,
		0x2e66: 0x2e60, 0xae66: 0xae68, 0x3555: 0x3554, 0xbc00: 0xbc00, 0x6401: 0x6401, 0xfc01: 0xfe00, 0x7d00: 0x7e00,
	} {
		if got := x.OffsetRoundTrip(1); got != want {
			t.Errorf("%04x.OffsetRoundTrip(1) = %04x, want %04x", x, got, want)
		}
	}
	for x, want := range map[tensor.Float16]tensor.Float16{0x2e66: 0x2e65, 0x3555: 0x3555, 0x3c07: 0x3c07, 0x6d55: 0x7c00} {
		if got := x.ScaleRoundTrip(12); got != want {
			t.Errorf("%04x.ScaleRoundTrip(12) = %04x, want %04x", x, got, want)
		}
	}
	if got := tensor.Float16(0x3c00).ScaleRoundTrip(0); got != 0x7e00 {
		t.Errorf("1 · 0 / 0 = %04x, want 7e00", got)
	}
}

func TestF16Map(t *testing.T) {
	m := tensor.NewF16Map(func(x tensor.Float16) tensor.Float16 { return x.ScaleRoundTrip(12) })
	for n := range 12 {
		data, want := make([]byte, 2*n), make([]byte, 2*n)
		for i := range n {
			x := tensor.Float16(i*5003 + 77)
			binary.LittleEndian.PutUint16(data[2*i:], uint16(x))
			binary.LittleEndian.PutUint16(want[2*i:], uint16(x.ScaleRoundTrip(12)))
		}
		m.Apply(data)
		if diff := cmp.Diff(want, data); diff != "" {
			t.Errorf("%d elements (-want +got)\n%s", n, diff)
		}
	}
}

// TestNumpy compares with hashes of what numpy and ml_dtypes compute; see
// testdata/golden.py.
func TestNumpy(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		F16ToF32  string   `json:"f16_to_f32"`
		BF16ToF32 string   `json:"bf16_to_f32"`
		BF16ToF16 string   `json:"bf16_to_f16"`
		Offset1   string   `json:"offset_1"`
		Scale12   string   `json:"scale_12"`
		ScaleDeci string   `json:"scale_0.1"`
		F32ToF16  []string `json:"f32_to_f16"`
		F32ToBF16 []string `json:"f32_to_bf16"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}

	var halves, brains []byte // without NaN
	for i := range 1 << 16 {
		if !tensor.Float16(i).IsNaN() {
			halves = binary.LittleEndian.AppendUint16(halves, uint16(i))
		}
		if !tensor.BFloat16(i).IsNaN() {
			brains = binary.LittleEndian.AppendUint16(brains, uint16(i))
		}
	}
	check := func(name, want string, data []byte) {
		t.Helper()
		if got := digest(data); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
	wide := make([]byte, 2*len(halves))
	tensor.F16ToF32(wide, halves)
	check("f16_to_f32", golden.F16ToF32, wide)
	wide = make([]byte, 2*len(brains))
	tensor.BF16ToF32(wide, brains)
	check("bf16_to_f32", golden.BF16ToF32, wide)
	cross := make([]byte, len(brains))
	tensor.BF16ToF16(cross, brains)
	check("bf16_to_f16", golden.BF16ToF16, cross)
	for name, tt := range map[string]struct {
		want string
		f    func(tensor.Float16) tensor.Float16
	}{
		"offset_1":  {golden.Offset1, func(x tensor.Float16) tensor.Float16 { return x.OffsetRoundTrip(1) }},
		"scale_12":  {golden.Scale12, func(x tensor.Float16) tensor.Float16 { return x.ScaleRoundTrip(12) }},
		"scale_0.1": {golden.ScaleDeci, func(x tensor.Float16) tensor.Float16 { return x.ScaleRoundTrip(0.1) }},
	} {
		data := append([]byte(nil), halves...)
		tensor.NewF16Map(tt.f).Apply(data)
		check(name, tt.want, data)
	}

	groups := make([][]byte, 512)
	for k := range uint64(1 << 22) {
		p := uint32(k * 0x9E37_79B1)
		groups[p>>23] = binary.LittleEndian.AppendUint32(groups[p>>23], p)
	}
	for i, src := range groups {
		dst := make([]byte, len(src)/2)
		tensor.F32ToF16(dst, src)
		check(fmt.Sprintf("f32_to_f16 of %03x…", i<<23>>20), golden.F32ToF16[i], dst)
		tensor.F32ToBF16(dst, src)
		check(fmt.Sprintf("f32_to_bf16 of %03x…", i<<23>>20), golden.F32ToBF16[i], dst)
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Benchmarks state the bytes read and written together, on weights as they are: normally
// distributed with a deviation of 0.02. "copy" moves as many bytes for comparison.
func BenchmarkConvert(b *testing.B) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(3, 4))
	floats := make([]float32, n)
	for i := range floats {
		floats[i] = float32(rng.NormFloat64() * 0.02)
	}
	b32, f16, bf16, dst32 := make([]byte, 4*n), make([]byte, 2*n), make([]byte, 2*n), make([]byte, 4*n)
	wide, dst16 := make([]float32, n), make([]byte, 2*n)
	tensor.EncodeF32(b32, floats)
	tensor.EncodeF16(f16, floats)
	tensor.EncodeBF16(bf16, floats)
	scale := tensor.NewF16Map(func(x tensor.Float16) tensor.Float16 { return x.ScaleRoundTrip(12) })
	for _, bench := range []struct {
		name  string
		bytes int64
		f     func()
	}{
		{"copy/3MiB", 6 * n, func() { copy(dst32[:3*n], b32[:3*n]) }},
		{"copy/2MiB", 4 * n, func() { copy(dst16, bf16) }},
		{"F16ToF32", 6 * n, func() { tensor.F16ToF32(dst32, f16) }},
		{"DecodeF16", 6 * n, func() { tensor.DecodeF16(wide, f16) }},
		{"BF16ToF32", 6 * n, func() { tensor.BF16ToF32(dst32, bf16) }},
		{"DecodeBF16", 6 * n, func() { tensor.DecodeBF16(wide, bf16) }},
		{"F32ToF16", 6 * n, func() { tensor.F32ToF16(dst16, b32) }},
		{"EncodeF16", 6 * n, func() { tensor.EncodeF16(dst16, floats) }},
		{"F32ToBF16", 6 * n, func() { tensor.F32ToBF16(dst16, b32) }},
		{"EncodeBF16", 6 * n, func() { tensor.EncodeBF16(dst16, floats) }},
		{"BF16ToF16", 4 * n, func() { tensor.BF16ToF16(dst16, bf16) }},
		{"F16Map", 4 * n, func() { scale.Apply(f16) }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(bench.bytes)
			for b.Loop() {
				bench.f()
			}
		})
	}
}
