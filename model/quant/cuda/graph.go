package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kiln-build/kiln/model/quant"
)

// Graph is recorded work that can be launched often. It uses the scratch memory of the stream it
// was recorded on, so it must not run at the same time as other work of that stream: launch it
// there.
type Graph struct {
	s *Stream

	mu     sync.Mutex
	exec   uintptr
	closed bool
}

// Record calls f and returns what it queued on the stream, which is not done. Other goroutines must
// not use the stream meanwhile.
func (s *Stream) Record(f func() error) (*Graph, error) {
	g := &Graph{s: s}
	err := s.d.do(func() (err error) {
		g.exec, err = s.d.drv.record(s.handle, f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return g, nil
}

// Record is [Stream.Record] on the device's own stream.
func (d *Device) Record(f func() error) (*Graph, error) { return d.main.Record(f) }

// Launch queues the graph on the stream that it was recorded on.
func (g *Graph) Launch() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("graph: %w", quant.ErrClosed)
	}
	return g.s.d.do(func() error { return g.s.d.drv.replay(g.exec, g.s.handle) })
}

// Close waits for the stream and gives the graph back.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("graph: %w", quant.ErrClosed)
	}
	g.closed = true
	return g.s.d.do(func() error {
		return errors.Join(g.s.d.drv.synchronize(g.s.handle), g.s.d.drv.destroyExec(g.exec))
	})
}
