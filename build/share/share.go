// Package share lets the rows of a run share their compiles: a pool that bounds what all compilers
// of the machine use at once, the way to a remote cache, the search for compilers that launchers
// are put before, ccache itself, and what was learned from the calls. Package launcher is the other
// end, inside the environments. It knows nothing of stages or sandboxes.
package share

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
)

// Options says how much may be used, and what is shared besides the machine.
type Options struct {
	// StateDir keeps what is learned about the memory of compilers.
	StateDir string
	// CPU and MemoryBytes are what compilers may use together; zero means this machine.
	CPU         int
	MemoryBytes int64
	// SlotsDir is the folder in which all kilns of a machine say what their compilers use. The
	// default is one in the system's folder for temporary files.
	SlotsDir string
	// Remote is a cache that is shared with other machines; an empty address means none. Transport
	// is how one is reached over HTTP.
	Remote    RemoteCache
	Transport http.RoundTripper
	// Log gets warnings.
	Log *slog.Logger
}

// Session is what the compilers of all rows have in common while a run lasts.
type Session struct {
	// Dir holds the sockets. Their paths have to be short, so it is not in the state folder.
	Dir string

	state  string
	pool   *slotPool
	remote *launcher.Remote
	stop   func()
}

const (
	slotsSocket  = "slots"
	remoteSocket = "remote"
)

// Start opens the pool, and the way to the remote cache.
func Start(ctx context.Context, o Options) (_ *Session, err error) {
	var ends []func() // in reverse
	stop := func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	s := &Session{state: o.StateDir, stop: stop}
	dir, lock, err := newRunDir()
	if err != nil {
		return nil, err
	}
	s.Dir = dir
	ends = append(ends, func() {
		os.RemoveAll(dir)
		_ = lock.Close()
	})
	if s.pool, err = newPool(o); err != nil {
		return nil, err
	}
	ends = append(ends, s.pool.leave)
	if o.Remote.URL != "" {
		remote, end, err := o.Remote.serve(ctx, filepath.Join(s.Dir, remoteSocket), o.Transport)
		if err != nil {
			return nil, err
		}
		s.remote = remote
		ends = append(ends, end)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(s.Dir, slotsSocket))
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.pool.serve(listener)
	}()
	ends = append(ends, func() {
		_ = listener.Close()
		<-served
	})
	return s, nil
}

// newPool makes the pool of this kiln, as one of those of the machine.
func newPool(o Options) (*slotPool, error) {
	found, err := memory.Read()
	if err != nil {
		return nil, fmt.Errorf("find the memory of this machine: %w", err)
	}
	whole := slotSum{runtime.GOMAXPROCS(0), found.BudgetBytes()}
	own := slotSum{cmp.Or(o.CPU, whole.CPU), cmp.Or(o.MemoryBytes, whole.MemoryBytes)}
	pool := newSlotPool(own.CPU, own.MemoryBytes, readPeaks(peaksPath(o.StateDir)))
	// The user may know of more than was found.
	limit := slotSum{max(own.CPU, whole.CPU), max(own.MemoryBytes, whole.MemoryBytes)}
	if err := pool.join(cmp.Or(o.SlotsDir, machineDir(found.Source == "cgroup")), limit); err != nil {
		o.Log.Warn("compilers of other kilns on this machine are not counted", "error", err)
	}
	return pool, nil
}

// Connect names the sockets in a configuration of launchers, which see Dir as dir.
func (s *Session) Connect(c *launcher.Config, dir string) {
	c.Slots = path.Join(dir, slotsSocket)
	if s.remote != nil {
		remote := *s.remote
		remote.Socket = path.Join(dir, remoteSocket)
		c.Remote = &remote
	}
}

// Close closes what Start has opened, and remembers what was learned. A nil session needs nothing.
func (s *Session) Close() error {
	if s == nil {
		return nil
	}
	s.stop()
	return writePeaks(peaksPath(s.state), s.pool.learned())
}

func peaksPath(stateDir string) string { return filepath.Join(stateDir, "peaks.json") }

// CallsDir has what the compilers of each row of a state folder did, by row.
func CallsDir(stateDir string) string { return filepath.Join(stateDir, "calls") }

// WriteCalls keeps what the compilers of a row did.
func WriteCalls(stateDir string, in *calls.Inputs) error {
	if err := os.MkdirAll(CallsDir(stateDir), 0o777); err != nil {
		return err
	}
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return fsx.WriteFile(filepath.Join(CallsDir(stateDir), in.Row+".json"), append(text, '\n'), 0o666)
}

// ReadCalls returns what the compilers of the rows of a state folder did, in the order of the rows'
// names.
func ReadCalls(stateDir string) ([]*calls.Inputs, error) {
	entries, err := os.ReadDir(CallsDir(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*calls.Inputs
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || fsx.IsTemp(e.Name()) {
			continue
		}
		in, err := calls.ReadInputs(filepath.Join(CallsDir(stateDir), e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}
