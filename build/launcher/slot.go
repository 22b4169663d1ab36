package launcher

import (
	"io"
	"slices"
)

// SlotRequest is the first line that a launcher sends to the pool. The answer is a line, when there is room; the slot
// is held as long as the connection, so that it is free again whatever ends the launcher.
type SlotRequest struct {
	Row string `json:"row"`
	// File names what is compiled, for what was learned about it: package, source, tool.
	File string `json:"file"`
	// Unit is equal for calls that may have the same result: only one of them runs at a time, the others find it in
	// the cache.
	Unit string `json:"unit,omitempty"`
	// CPU is how many processors it keeps busy; MemoryBytes is for the case that nothing was learned.
	CPU         int   `json:"cpu"`
	MemoryBytes int64 `json:"memory_bytes"`
}

// SlotReport is the second line, at the end.
type SlotReport struct {
	Result          Outcome `json:"result"`
	PeakMemoryBytes int64   `json:"peak_memory_bytes"`
}

func (r *SlotRequest) encode() []byte {
	var o object
	o.string("row", r.Row)
	o.string("file", r.File)
	o.optional("unit", r.Unit)
	o.int("cpu", int64(r.CPU))
	o.int("memory_bytes", r.MemoryBytes)
	return o.end()
}

func (r *SlotReport) encode() []byte {
	var o object
	o.string("result", string(r.Result))
	o.int("peak_memory_bytes", r.PeakMemoryBytes)
	return o.end()
}

// slot is a place in the pool; nil connection means that there is no pool.
type slot struct{ conn io.ReadWriteCloser }

// acquire waits for a place. A pool that cannot be reached, or goes away, is no reason not to compile.
func (l *launcher) acquire(r *Record, call *call) *slot {
	if l.Slots == "" {
		return &slot{}
	}
	conn, err := dial(l.Slots)
	if err != nil {
		return &slot{}
	}
	request := SlotRequest{
		Row: l.Row, File: l.Package + " " + r.Source + " " + string(l.tool.Kind), CPU: call.threads, MemoryBytes: l.MemoryBytes * int64(call.threads),
	}
	if l.tool.Refused == "" && call.refused == "" && l.CCache != "" {
		var o object
		o.strings("unit", []string{l.Package, l.Version, r.Compiler, r.Source})
		o.strings("args", r.Args)
		request.Unit = fingerprint(o.end())
	}
	if _, err := conn.Write(request.encode()); err != nil {
		_ = conn.Close()
		return &slot{}
	}
	for answer := make([]byte, 16); ; {
		n, err := conn.Read(answer)
		if err != nil {
			_ = conn.Close()
			return &slot{}
		}
		if slices.Contains(answer[:n], '\n') {
			return &slot{conn}
		}
	}
}

// done says how it went and gives the place back.
func (s *slot) done(r *Record) {
	if s.conn != nil {
		report := SlotReport{Result: r.Result, PeakMemoryBytes: r.PeakMemoryBytes}
		_, _ = s.conn.Write(report.encode())
	}
	s.close()
}

func (s *slot) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}
