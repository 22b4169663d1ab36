package exl2

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/kiln-build/kiln/internal/fsx"
)

// inputs keeps the file that was read last open; tensors of one file mostly come one after the
// other.
type inputs struct {
	plan *Plan
	at   int
	file *os.File
}

func (s *inputs) open(i int) (*os.File, error) {
	if s.file != nil && s.at == i {
		return s.file, nil
	}
	s.close()
	f, err := openInput(s.plan.Inputs[i])
	if err != nil {
		return nil, err
	}
	s.at, s.file = i, f
	return f, nil
}

func (s *inputs) close() {
	if s.file != nil {
		s.file.Close() //nolint:errcheck // only read
		s.file = nil
	}
}

// How far reading is ahead of the bytes that are used, and how much is written before the disk
// begins to take it. Both keep the disk busy while the processors convert and hash; the pages
// belong to the system and are not memory of this process.
const (
	prefetchBytes  = 32 << 20
	prefetchStep   = 4 << 20
	writebackBytes = 8 << 20
)

// prefetcher asks for the sources of tensors before they are read, in the same order. The system
// reads ahead in a file by itself, but a layer is a file of a few megabytes, and at the start of
// each it would wait for the disk.
type prefetcher struct {
	src     inputs
	tensors []PlannedTensor // not asked for yet
	at      int64           // in the first of them
	asked   int64           // of all sources, one after the other
}

// reach says that reading is at pos, counted like asked.
func (p *prefetcher) reach(pos int64) {
	for len(p.tensors) > 0 && p.asked < pos+prefetchBytes {
		from := p.tensors[0].From
		n := min(from.Size-p.at, prefetchStep)
		if f, err := p.src.open(from.Input); err == nil { // the reader of the bytes meets an error again
			fsx.Prefetch(f, from.Offset+p.at, n)
		}
		p.at += n
		p.asked += n
		if p.at == from.Size {
			p.at, p.tensors = 0, p.tensors[1:]
		}
	}
}

// source reads a file of inputs and tells the prefetcher where it is.
type source struct {
	*os.File
	ahead *prefetcher
	shift int64 // from offsets in the file to the prefetcher's positions
}

func (s source) ReadAt(p []byte, off int64) (int, error) {
	s.ahead.reach(off + s.shift)
	return s.File.ReadAt(p, off)
}

// streamShard writes a shard in order through a fixed set of buffers. Reading and converting,
// writing, the digest of the file and the digests of the tensors are four goroutines, so hashing
// costs another processor, not time.
func (w *writer) streamShard(ctx context.Context, f *os.File, s *Shard, rec *shardRecord) error {
	p := newPipeline(ctx, max(minBuffersPerWorker, allBuffers/min(w.opts.Workers, len(w.plan.Shards))), w.opts.BufferBytes)
	var sent int64 // on the way to the disk
	p.consume(func(c *chunk) error {
		_, err := f.WriteAt(c.buf[:c.n], c.off)
		if end := c.off + int64(c.n); end-sent >= writebackBytes {
			fsx.StartWriteback(f, sent, end-sent)
			sent = end
		}
		w.advance(int64(c.n))
		return err
	})
	whole := p.digest()
	ranges := make([]byteRange, len(s.Tensors))
	for i := range s.Tensors {
		ranges[i] = byteRange{s.Tensors[i].Offset, s.Tensors[i].Size}
	}
	tensors := p.digestRanges(ranges)
	if err := p.finish(w.produce(p, s, rec)); err != nil {
		return err
	}
	rec.SHA256 = hex.EncodeToString(whole.Sum(nil))
	rec.Tensors = tensors.sums
	return nil
}

// produce puts the bytes of the shard into the pipeline, from the header to the last tensor.
func (w *writer) produce(p *pipeline, s *Shard, rec *shardRecord) error {
	header, err := w.plan.shardHeader(s)
	if err != nil {
		return err
	}
	src := &inputs{plan: w.plan}
	defer src.close()
	ahead := &prefetcher{src: inputs{plan: w.plan}, tensors: s.Tensors}
	defer ahead.src.close()
	var pos int64 // as the prefetcher counts
	maps := roundTripMaps{}
	scratch := make([]byte, 64<<10)

	if err := p.read(bytes.NewReader(header), int64(len(header))); err != nil {
		return err
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		file, err := src.open(t.From.Input)
		if err != nil {
			return err
		}
		f := source{File: file, ahead: ahead, shift: pos - t.From.Offset}
		pos += t.From.Size
		if t.Convert == nil {
			err = p.read(io.NewSectionReader(f, t.From.Offset, t.From.Size), t.Size)
		} else {
			c := newConverter(f, &t.Tensor, maps.get(t.Convert), scratch)
			err = p.read(c, t.Size)
			rec.note(t.Name, c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	return nil
}

// note records values of a converted tensor that did not survive.
func (r *shardRecord) note(name string, c *converter) {
	if c.loss.Overflow > 0 || c.loss.NaN > 0 {
		r.Values = append(r.Values, NonFinite{Tensor: name, Overflow: c.loss.Overflow, NaN: c.loss.NaN})
	}
}

// span is a run of bytes that is contiguous in the input and in the shard.
type span struct {
	input  int
	src    int64
	dst, n int64
	t      *PlannedTensor // set for a tensor that is converted
}

// spanBytes cuts long runs so that several workers share them.
const spanBytes = 64 << 20

func spans(s *Shard) []span {
	var out []span
	for i := range s.Tensors {
		t := &s.Tensors[i]
		if t.Convert != nil {
			out = append(out, span{input: t.From.Input, dst: t.Offset, n: t.Size, t: t})
			continue
		}
		if k := len(out) - 1; k >= 0 && out[k].t == nil && out[k].input == t.From.Input &&
			out[k].src+out[k].n == t.From.Offset && out[k].dst+out[k].n == t.Offset {
			out[k].n += t.Size
			continue
		}
		out = append(out, span{input: t.From.Input, src: t.From.Offset, dst: t.Offset, n: t.Size})
	}
	var cut []span
	for _, sp := range out {
		for sp.t == nil && sp.n > spanBytes {
			cut = append(cut, span{input: sp.input, src: sp.src, dst: sp.dst, n: spanBytes})
			sp.src, sp.dst, sp.n = sp.src+spanBytes, sp.dst+spanBytes, sp.n-spanBytes
		}
		cut = append(cut, sp)
	}
	return cut
}

// copyShard writes a shard without looking at its bytes: ranges in parallel, copied by the kernel
// where it can.
func (w *writer) copyShard(ctx context.Context, f *os.File, s *Shard, rec *shardRecord) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	header, err := w.plan.shardHeader(s)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(header, 0); err != nil {
		return err
	}
	w.advance(int64(len(header)))
	list := spans(s)
	var mu sync.Mutex
	parallel(ctx, w.opts.Workers, len(list), func(i int) {
		if err := w.span(f, list[i], rec, &mu); err != nil {
			cancel(err)
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	rec.sortValues()
	return nil
}

func (w *writer) span(dst *os.File, sp span, rec *shardRecord, mu *sync.Mutex) error {
	src, err := openInput(w.plan.Inputs[sp.input])
	if err != nil {
		return err
	}
	defer src.Close()
	if sp.t == nil {
		fsx.Prefetch(src, sp.src, min(sp.n, prefetchBytes))
		for at := int64(0); at < sp.n; {
			n, err := fsx.CopyRange(dst, sp.dst+at, src, sp.src+at, min(sp.n-at, writebackBytes))
			w.advance(n)
			if err != nil {
				return err
			}
			fsx.StartWriteback(dst, sp.dst+at, n)
			at += n
		}
		return nil
	}
	buf := make([]byte, 2*(64<<10))
	c := newConverter(src, &sp.t.Tensor, sp.t.Convert.roundTrips(), buf[64<<10:])
	buf = buf[:64<<10]
	for at := int64(0); at < sp.n; {
		k := min(sp.n-at, int64(len(buf)))
		if _, err := io.ReadFull(c, buf[:k]); err != nil {
			return fmt.Errorf("%s: %w", sp.t.Name, err)
		}
		if _, err := dst.WriteAt(buf[:k], sp.dst+at); err != nil {
			return err
		}
		at += k
		w.advance(k)
	}
	mu.Lock()
	defer mu.Unlock()
	rec.note(sp.t.Name, c)
	return nil
}
