package serve

import (
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

// TestBlake2b: digests by Python's hashlib of n bytes (7·i + n) mod 251.
func TestBlake2b(t *testing.T) {
	for _, test := range []struct {
		n    int
		want string
	}{
		{0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
		{1, "ee155ace9c40292074cb6aff8c9ccdd273c81648ff1149ef36bcea6ebb8a3e25"},
		{3, "9facd640130c81e7f318a8d5c660bc1b0f5d03861ffbd4cc1358e0e904593c28"},
		{127, "1c171e998aff7ddd899783610668504f26fe61fbfacc78e48c4ea80eecc1f866"},
		{128, "685b73b75dc1b6556038ef8fdad4b2ce90982353724a24f7dc28b176a2a97bf2"},
		{129, "0c537bbbdad527a580c5b73f46782f7301dbf54a8626ec3c3042d7d7a336ca8e"},
		{255, "d7ef1419c00bbf66abbd4dafb182f59039006cb143372ad5d067059a850ed2e0"},
		{256, "cd4f5f042c7b0f98e69a08af876a9c690ec8608de64f5df79e2120aad6344ae8"},
		{257, "ddd6c2e1515246b0ee2bffeb62d829a3712ae811d6bbd29631071f899cbfe962"},
		{1000, "c6c87f8729c7510dafb7a82884256a61bd63a33aa2506de9b5533646e476405c"},
		{65536, "ea0245e2cd6be7b015c2b6ebdf72e9baf93fb5e090e26d4519dcc0a25866e6dd"},
	} {
		data := make([]byte, test.n)
		for i := range data {
			data[i] = byte((i*7 + test.n) % 251)
		}
		h := newBlake2b256()
		_, _ = h.Write(data)
		if got := hex.EncodeToString(h.Sum(nil)); got != test.want {
			t.Errorf("%d bytes: %s, want %s", test.n, got, test.want)
		}
	}
}

// TestBlake2bPieces: the digest does not depend on how the bytes arrive.
func TestBlake2bPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(t, "data")
		whole, pieces := newBlake2b256(), newBlake2b256()
		_, _ = whole.Write(data)
		for rest := data; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			_, _ = pieces.Write(rest[:n])
			_ = pieces.Sum(nil) // must not disturb
			rest = rest[n:]
		}
		if a, b := hex.EncodeToString(whole.Sum(nil)), hex.EncodeToString(pieces.Sum(nil)); a != b {
			t.Fatalf("%s at once, %s in pieces", a, b)
		}
	})
}
