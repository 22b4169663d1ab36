package launcher

import (
	"bufio"
	"encoding/json"
	"net"
)

// SlotRequest is the first line that a launcher sends to the pool. The answer is a line, when there
// is room; the slot is held as long as the connection, so that it is free again whatever ends the
// launcher.
type SlotRequest struct {
	Row string `json:"row"`
	// File names what is compiled, for what was learned about it: package, source, tool.
	File string `json:"file"`
	// Unit is equal for calls that may have the same result: only one of them runs at a time, the
	// others find it in the cache.
	Unit string `json:"unit,omitempty"`
	// CPU is how many processors it keeps busy; MemoryBytes is for the case that nothing was
	// learned.
	CPU         int   `json:"cpu"`
	MemoryBytes int64 `json:"memory_bytes"`
}

// SlotReport is the second line, at the end.
type SlotReport struct {
	Result          Outcome `json:"result"`
	PeakMemoryBytes int64   `json:"peak_memory_bytes"`
}

// slot is a place in the pool; nil means that there is no pool.
type slot struct{ conn net.Conn }

// acquire waits for a place. A pool that cannot be reached, or ends, is no reason not to compile.
func (l *launcher) acquire(r *Entry, call *call) *slot {
	if l.Slots == "" {
		return nil
	}
	conn, err := net.Dial("unix", l.Slots) //nolint:noctx // A local socket answers at once.
	if err != nil {
		return nil
	}
	request := SlotRequest{
		Row: l.Row, File: l.Package + " " + r.Source + " " + string(l.tool.Kind),
		CPU: call.threads, MemoryBytes: l.MemoryBytes * int64(call.threads),
	}
	if l.tool.Refused == "" && call.refused == "" && l.CCache != "" {
		unit, _ := json.Marshal([]any{l.Package, l.Version, r.Compiler, r.Source, r.Args}) // texts
		request.Unit = fingerprint(unit)
	}
	if err = json.NewEncoder(conn).Encode(request); err == nil {
		_, err = bufio.NewReader(conn).ReadString('\n')
	}
	if err != nil {
		_ = conn.Close()
		return nil
	}
	return &slot{conn}
}

// done says how it went and gives the place back.
func (s *slot) done(r *Entry) {
	if s != nil {
		_ = json.NewEncoder(s.conn).Encode(SlotReport{Result: r.Result, PeakMemoryBytes: r.PeakMemoryBytes})
	}
	s.close()
}

// close gives the place back; it may be called again.
func (s *slot) close() {
	if s != nil {
		_ = s.conn.Close()
	}
}
