package exl2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"
)

// Random ranges of random files, empty ones and gaps included, through buffers of random sizes.
func TestPipelineDigests(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, r.IntN(2)*r.IntN(5000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		var ranges []byteRange
		var want []string
		for at := 0; len(ranges) < 20; {
			at += r.IntN(2) * r.IntN(200)
			n := r.IntN(2) * r.IntN(600)
			if at+n > len(data) {
				break
			}
			sum := sha256.Sum256(data[at : at+n])
			ranges, want = append(ranges, byteRange{int64(at), int64(n)}), append(want, hex.EncodeToString(sum[:]))
			at += n
		}
		if r.IntN(2) == 0 {
			sum := sha256.Sum256(nil)
			ranges, want = append(ranges, byteRange{int64(len(data)), 0}), append(want, hex.EncodeToString(sum[:]))
		}

		p := newPipeline(t.Context(), 1+r.IntN(5), 1+r.IntN(700))
		whole, parts := p.digest(), p.digestRanges(ranges)
		var copied bytes.Buffer
		p.consume(func(c *chunk) error {
			if int64(copied.Len()) != c.off {
				t.Errorf("seed %d: bytes at %d come after %d", seed, c.off, copied.Len())
			}
			copied.Write(c.buf[:c.n])
			return nil
		})
		var err error
		for rest := bytes.NewReader(data); rest.Len() > 0 && err == nil; {
			err = p.read(iotest.HalfReader(rest), int64(1+r.IntN(rest.Len())))
		}
		if err := p.finish(err); err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); !bytes.Equal(whole.Sum(nil), sum[:]) || !bytes.Equal(copied.Bytes(), data) {
			t.Errorf("seed %d: other bytes arrived", seed)
		}
		if !slices.Equal(parts.sums, want) {
			t.Errorf("seed %d: digests of %v are\n%v, want\n%v", seed, ranges, parts.sums, want)
		}
	}
}

func TestPipelineErrors(t *testing.T) {
	broken, full, stopped := errors.New("broken disk"), errors.New("disk full"), errors.New("stopped")
	forever := zeros{}
	for _, c := range []struct {
		name string
		from io.Reader
		use  func(*chunk) error
		want error
	}{
		{"reader", io.MultiReader(io.LimitReader(forever, 1000), iotest.ErrReader(broken)), nil, broken},
		{"too short", io.LimitReader(forever, 1000), nil, io.ErrUnexpectedEOF},
		{"consumer", forever, func(c *chunk) error {
			if c.off > 500 {
				return full
			}
			return nil
		}, full},
		{"context", forever, nil, stopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			p := newPipeline(ctx, 3, 100)
			p.digest()
			if c.use != nil {
				p.consume(c.use)
			}
			if errors.Is(c.want, stopped) {
				p.consume(func(c *chunk) error {
					if c.off > 500 {
						cancel(stopped)
					}
					return nil
				})
			}
			n := int64(1 << 40)
			if errors.Is(c.want, io.ErrUnexpectedEOF) {
				n = 1050 // ends within a buffer
			}
			if err := p.finish(p.read(c.from, n)); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
