package exl2

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"sync/atomic"
)

// pipeline hands the bytes of a file, in order and through a fixed set of buffers, to several
// consumers at once. Each consumer is a goroutine; one that is slow slows the others down only when
// no buffer is left.
type pipeline struct {
	ctx       context.Context
	cancel    context.CancelCauseFunc
	free      chan *chunk
	consumers []chan *chunk
	done      []chan struct{}
	cur       *chunk // being filled, or nil
	off       int64  // behind the bytes that were handed over
}

// chunk is a buffer on its way.
type chunk struct {
	buf  []byte
	n    int
	off  int64
	refs atomic.Int32 // consumers that still need it
}

func newPipeline(ctx context.Context, buffers, size int) *pipeline {
	p := &pipeline{free: make(chan *chunk, buffers)}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	for range buffers {
		p.free <- &chunk{buf: make([]byte, size)}
	}
	return p
}

// consume adds a consumer. Its error ends everything.
func (p *pipeline) consume(use func(*chunk) error) {
	in, done := make(chan *chunk, cap(p.free)), make(chan struct{})
	p.consumers, p.done = append(p.consumers, in), append(p.done, done)
	go func() {
		defer close(done)
		for c := range in {
			if p.ctx.Err() == nil {
				if err := use(c); err != nil {
					p.cancel(err)
				}
			}
			if c.refs.Add(-1) == 0 {
				p.free <- c
			}
		}
	}()
}

// read puts n bytes of r into the pipeline.
func (p *pipeline) read(r io.Reader, n int64) error {
	for n > 0 {
		if p.cur == nil {
			select {
			case p.cur = <-p.free:
				p.cur.n, p.cur.off = 0, p.off
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			}
		}
		c := p.cur
		k := int(min(n, int64(len(c.buf)-c.n)))
		switch _, err := io.ReadFull(r, c.buf[c.n:c.n+k]); {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF // between two buffers, and still too early
		case err != nil:
			return err
		}
		c.n += k
		n -= int64(k)
		if c.n == len(c.buf) {
			p.flush()
		}
	}
	return nil
}

func (p *pipeline) flush() {
	c := p.cur
	if c == nil {
		return
	}
	p.cur = nil
	p.off += int64(c.n)
	c.refs.Store(int32(len(p.consumers)))
	for _, in := range p.consumers {
		in <- c
	}
}

// finish ends the pipeline, waits for its consumers and returns the first error: of the reader,
// which is handed in, of the context or of a consumer.
func (p *pipeline) finish(err error) error {
	if err != nil {
		p.cancel(err)
	} else {
		if p.cur == nil && p.off == 0 {
			p.cur = <-p.free // consumers see an empty file too
			p.cur.n, p.cur.off = 0, 0
		}
		p.flush()
	}
	for i, in := range p.consumers {
		close(in)
		<-p.done[i]
	}
	err = nil
	if p.ctx.Err() != nil {
		err = context.Cause(p.ctx)
	}
	p.cancel(nil)
	return err
}

// digest adds a consumer that computes the digest of all bytes. It is whole when finish has
// returned.
func (p *pipeline) digest() hash.Hash {
	h := sha256.New()
	p.consume(func(c *chunk) error { h.Write(c.buf[:c.n]); return nil })
	return h
}

// byteRange is a part of a file.
type byteRange struct {
	off, n int64
}

func (r byteRange) end() int64 { return r.off + r.n }

// rangeDigests are digests of ranges that do not overlap and are in order.
type rangeDigests struct {
	left []byteRange
	h    hash.Hash
	sums []string
}

// digestRanges adds a consumer that computes the digests of ranges. All are there when finish has
// returned.
func (p *pipeline) digestRanges(ranges []byteRange) *rangeDigests {
	d := &rangeDigests{left: ranges, h: sha256.New()}
	p.consume(func(c *chunk) error { d.add(c); return nil })
	return d
}

func (d *rangeDigests) add(c *chunk) {
	end := c.off + int64(c.n)
	for len(d.left) > 0 && d.left[0].off <= end { // an empty one may be at the end
		r := d.left[0]
		d.h.Write(c.buf[max(r.off, c.off)-c.off : min(r.end(), end)-c.off])
		if r.end() > end {
			return
		}
		d.sums = append(d.sums, hex.EncodeToString(d.h.Sum(nil)))
		d.h.Reset()
		d.left = d.left[1:]
	}
}
