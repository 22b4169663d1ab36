package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// gate counts connections and requests, all of them and those of one address. Where a limit is
// reached, connections without a request make room, the oldest first; if there are none, the new one
// is told to come back later, or if there are far too many, closed.
type gate struct {
	total, perAddress int
	trusted           []netip.Prefix
	log               *slog.Logger

	mu       sync.Mutex
	places   map[*place]struct{}
	conns    map[netip.Addr]int // by address, those of trusted proxies left out
	requests map[netip.Addr]int // under way, of connections that can have several at once

	logged atomic.Int64 // when a refusal was last logged, in seconds
}

// place is what a connection has at the gate.
type place struct {
	conn    net.Conn
	addr    netip.Addr // that counts, or zero
	proxy   bool       // it belongs to a trusted proxy
	refusal string     // what its requests are told, "" if they are answered

	busy  atomic.Int32 // requests under way
	since atomic.Int64 // when the last one ended, in nanoseconds
	gone  atomic.Bool
}

// reserve is how many connections beyond the limit get an answer, and the health check with it.
func (g *gate) reserve() int { return min(64, g.total/4) }

// newGate makes a gate for the options of a server.
func newGate(opts *Options) *gate {
	g := &gate{
		total: opts.MaxConnections, perAddress: opts.MaxPerAddress, trusted: opts.TrustedProxies, log: opts.Log,
		places: map[*place]struct{}{}, conns: map[netip.Addr]int{}, requests: map[netip.Addr]int{},
	}
	// A connection can need a file too; pages and the server itself have the rest.
	n := descriptors()
	g.total = min(g.total, max(16, (n-min(maxSendfiles, n/8)-64)/2))
	return g
}

// LimitListener returns l with at most n connections, of which the oldest makes room for a new one.
// It is for listeners that only a few clients know.
func LimitListener(l net.Listener, n int, log *slog.Logger) net.Listener {
	return newGateListener(l, newGate(&Options{MaxConnections: n, MaxPerAddress: n, Log: log}), false)
}

// outOfDescriptors reports whether an error says that no more files can be open.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// diskFull reports whether an error says that nothing more can be written.
func diskFull(err error) bool {
	const windowsDiskFull = syscall.Errno(112)
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || runtime.GOOS == "windows" && errors.Is(err, windowsDiskFull)
}

// addressOf returns what stands for a client: its IPv4 address, or the network of its IPv6 address,
// of which one client has as many as it likes.
func addressOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

func (g *gate) trusts(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(g.trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// enter finds a place for a connection. It is nil if there is none.
func (g *gate) enter(c net.Conn) *place {
	p := &place{conn: c}
	if ap, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		if p.proxy = g.trusts(ap.Addr()); !p.proxy {
			p.addr = addressOf(ap.Addr())
		}
	}
	p.since.Store(time.Now().UnixNano())
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.conns[p.addr]; p.addr.IsValid() && n >= g.perAddress {
		same := func(o *place) bool { return o.addr == p.addr }
		switch {
		case g.makeRoom(graceTime, same):
		case n >= g.perAddress+g.reserve() && !g.makeRoom(0, same):
			g.warn("connections refused", "too many connections of one address", p.addr)
			return nil
		default:
			p.refusal = "too many connections from your address; try again in a moment"
		}
	}
	if n := len(g.places); n >= g.total {
		all := func(*place) bool { return true }
		switch {
		case g.makeRoom(graceTime, all):
		case n >= g.total+g.reserve() && !g.makeRoom(0, all):
			g.warn("connections refused", "too many connections", p.addr)
			return nil
		default:
			p.refusal = "too many connections; try again in a moment"
		}
	}
	if p.refusal != "" {
		g.warn("connections refused", p.refusal, p.addr)
	}
	g.places[p] = struct{}{}
	if p.addr.IsValid() {
		g.conns[p.addr]++
	}
	return p
}

// graceTime is how long a connection has for its first request before it makes room for others, if
// there is any other way.
const graceTime = 100 * time.Millisecond

// makeRoom closes some of the connections that match and have no request: of the addresses with the
// most connections, those that have waited longest. It reports whether there were any. Several at
// once, as each time it looks at all of them. Those within their time of grace stay. g.mu is held.
func (g *gate) makeRoom(grace time.Duration, match func(*place) bool) bool {
	type waiting struct {
		*place
		conns int
		since int64
	}
	var idle []waiting
	young := time.Now().Add(-grace).UnixNano()
	for p := range g.places {
		w := waiting{p, g.conns[p.addr], p.since.Load()}
		if p.busy.Load() == 0 && match(p) && w.since <= young {
			idle = append(idle, w)
		}
	}
	if len(idle) == 0 {
		return false
	}
	slices.SortFunc(idle, func(a, b waiting) int { return cmp.Or(cmp.Compare(b.conns, a.conns), cmp.Compare(a.since, b.since)) })
	for _, p := range idle[:1+len(idle)/16] {
		g.drop(p.place)
		_ = p.conn.Close() // its reader ends with an error
	}
	return true
}

// drop forgets a place. g.mu is held.
func (g *gate) drop(p *place) {
	if p.gone.Swap(true) {
		return
	}
	delete(g.places, p)
	if p.addr.IsValid() {
		if g.conns[p.addr]--; g.conns[p.addr] == 0 {
			delete(g.conns, p.addr)
		}
	}
}

// leave gives a place back, once.
func (g *gate) leave(p *place) {
	if p.gone.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(p)
}

// begin counts a request. It returns what the client is told if it is not answered, and a function
// for its end.
func (g *gate) begin(r *http.Request) (refusal string, end func()) {
	p, _ := r.Context().Value(placeKey{}).(*place)
	if p == nil {
		return "", func() {}
	}
	p.busy.Add(1)
	end = func() {
		p.since.Store(time.Now().UnixNano())
		p.busy.Add(-1)
	}
	if p.refusal != "" || r.ProtoMajor == 1 && !p.proxy {
		return p.refusal, end // it counts as a connection
	}
	addr := addressOf(g.client(r))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.requests[addr] >= g.perAddress {
		g.warn("requests refused", "too many requests of one address", addr)
		return "too many requests at once from your address; try again in a moment", end
	}
	g.requests[addr]++
	return "", func() {
		g.mu.Lock()
		if g.requests[addr]--; g.requests[addr] == 0 {
			delete(g.requests, addr)
		}
		g.mu.Unlock()
		p.since.Store(time.Now().UnixNano())
		p.busy.Add(-1)
	}
}

// idle lets the connection of a request make room for others while f runs: the answer is on its way,
// and what the client still sends does not matter.
func (g *gate) idle(r *http.Request, f func()) {
	if p, _ := r.Context().Value(placeKey{}).(*place); p != nil {
		p.since.Store(time.Now().UnixNano())
		p.busy.Add(-1)
		defer p.busy.Add(1)
	}
	f()
}

// client is the address that a request comes from: of a trusted proxy, the last one in
// X-Forwarded-For that is not a trusted proxy too. Each proxy appends the address it sees, so that
// what a client invents stands before.
func (g *gate) client(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr := ap.Addr().Unmap()
	if !g.trusts(addr) {
		return addr
	}
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		next, err := netip.ParseAddr(strings.Trim(hop, "[]"))
		if err != nil {
			withPort, err := netip.ParseAddrPort(hop)
			if err != nil {
				return addr
			}
			next = withPort.Addr()
		}
		if addr = next.Unmap(); !g.trusts(addr) {
			return addr
		}
	}
	return addr
}

// warn logs at most one line in ten seconds.
func (g *gate) warn(message, why string, addr netip.Addr) {
	now := time.Now().Unix()
	if last := g.logged.Load(); now-last < 10 || !g.logged.CompareAndSwap(last, now) {
		return
	}
	g.log.Warn(message, "reason", why, "address", addr.String(), "connections", len(g.places))
}

type placeKey struct{}

// placed is a connection that has a place.
type placed interface{ place() *place }

// withPlace lets requests find the place of their connection.
func withPlace(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if p, ok := c.(placed); ok {
		return context.WithValue(ctx, placeKey{}, p.place())
	}
	return ctx
}

// gateConn gives its place back when it is closed.
type gateConn struct {
	net.Conn

	gate *gate
	at   *place
}

func (c *gateConn) place() *place { return c.at }

// Close closes the connection.
func (c *gateConn) Close() error {
	c.gate.leave(c.at)
	return c.Conn.Close()
}

// gateListener lets in what the gate has a place for, and outlives what the system lacks.
type gateListener struct {
	net.Listener

	gate  *gate
	plain bool // clients speak HTTP without TLS

	mu     sync.Mutex
	spare  *os.File // a descriptor for telling one client that there are none
	closed bool

	failed time.Time // when an error was last logged
}

// Limit returns l with the limits of the server on connections: to be used below TLS. A server
// without TLS uses [Server.Listener], which has them too.
func (s *Server) Limit(l net.Listener) net.Listener { return newGateListener(l, s.gate, false) }

func newGateListener(l net.Listener, g *gate, plain bool) *gateListener {
	spare, _ := os.Open(os.DevNull) // without it, clients wait
	return &gateListener{Listener: l, gate: g, plain: plain, spare: spare}
}

// Accept waits for a connection that has a place.
func (l *gateListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !l.survives(err) {
				return nil, err
			}
			continue
		}
		if p := l.gate.enter(c); p != nil {
			return &gateConn{Conn: c, gate: l.gate, at: p}, nil
		}
		_ = c.Close()
	}
}

// Close ends Accept.
func (l *gateListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if spare := l.swap(nil); spare != nil {
		_ = spare.Close()
	}
	return l.Listener.Close()
}

// passingErrors are the errors of a listener that may not be there the next time.
var passingErrors = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPERM,
}

// survives makes room after an error of the system that may pass, logs it once in ten seconds and
// waits a moment. It is false for errors that stay.
func (l *gateListener) survives(err error) bool {
	if !slices.ContainsFunc(passingErrors, func(passing error) bool { return errors.Is(err, passing) }) {
		return false
	}
	l.gate.mu.Lock()
	l.gate.makeRoom(0, func(*place) bool { return true })
	n := len(l.gate.places)
	l.gate.mu.Unlock()
	if now := time.Now(); now.Sub(l.failed) > 10*time.Second {
		l.failed = now
		l.gate.log.Error("connection not accepted", "error", err, "connections", n)
	}
	if outOfDescriptors(err) {
		if spare := l.swap(nil); spare != nil {
			_ = spare.Close()
			if c, err := l.Listener.Accept(); err == nil { // the one that waits
				l.sorry(c)
			}
		}
		spare, _ := os.Open(os.DevNull)
		l.swap(spare)
	}
	time.Sleep(5 * time.Millisecond)
	return true
}

// swap exchanges the spare descriptor. A closed listener keeps none.
func (l *gateListener) swap(spare *os.File) *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.spare
	if l.closed && spare != nil {
		_ = spare.Close()
		spare = nil
	}
	l.spare = spare
	return old
}

// sorry answers one client without a goroutine of its own.
func (l *gateListener) sorry(c net.Conn) {
	defer c.Close()
	if !l.plain {
		return
	}
	// What is not read would make the system drop the answer.
	_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
	_, _ = c.Read(make([]byte, 4<<10))
	const text = "too many open files; try again in a moment\n"
	_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Type: text/plain\r\n\r\n"+text)
}
