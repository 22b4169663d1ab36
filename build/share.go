package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/matrix"
)

// insideSlots is where environments see the sockets of the pool and of the remote cache.
const insideSlots = "/kiln/slots"

// defaultCacheBytes is how much compiled code is kept.
const defaultCacheBytes = 20e9

// sharing is what the compilers of all rows have in common while a run lasts.
type sharing struct {
	// dir holds the sockets. Their paths have to be short, so it is not in the state folder.
	dir    string
	pool   *slotPool
	remote *launcher.Remote
	stop   func()
}

const (
	slotsSocket  = "slots"
	remoteSocket = "remote"
)

// startSharing opens the pool, and the way to the remote cache. Without a kiln to show to the environments nothing is
// shared: there would be nobody to do it.
func (o *Options) startSharing(ctx context.Context) (err error) {
	if o.NoShare || o.Kiln == "" || runtime.GOOS != "linux" {
		return nil
	}
	s := &sharing{}
	var lock *os.File
	if s.dir, lock, err = newRunDir(); err != nil {
		return err
	}
	remove := func() {
		os.RemoveAll(s.dir)
		_ = lock.Close()
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	found, err := memory.Read()
	if err != nil {
		return fmt.Errorf("find the memory of this machine: %w", err)
	}
	whole := slotSum{runtime.GOMAXPROCS(0), found.BudgetBytes()}
	own := slotSum{cmp.Or(o.CPU, whole.CPU), cmp.Or(o.MemoryBytes, whole.MemoryBytes)}
	s.pool = newSlotPool(own.CPU, own.MemoryBytes, readPeaks(o.peaksPath()))
	// Who says that there is more than was found is believed.
	limit := slotSum{max(own.CPU, whole.CPU), max(own.MemoryBytes, whole.MemoryBytes)}
	if err := s.pool.join(cmp.Or(o.SlotsDir, machineDir(found.Source == "cgroup")), limit); err != nil {
		o.Log.Warn("compilers of other kilns on this machine are not counted", "error", err)
	}
	defer func() {
		if err != nil {
			s.pool.leave()
		}
	}()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(s.dir, slotsSocket))
	if err != nil {
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.pool.serve(listener)
	}()
	var remote *remoteServer
	if o.Remote.URL != "" {
		if s.remote, remote, err = o.serveRemote(ctx, filepath.Join(s.dir, remoteSocket)); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	s.stop = func() {
		_ = listener.Close()
		<-served
		if remote != nil {
			remote.stop()
		}
		s.pool.leave()
		remove()
	}
	o.share = s
	return nil
}

// stopSharing closes what startSharing has opened, and remembers what was learned.
func (o *Options) stopSharing() error {
	if o.share == nil {
		return nil
	}
	o.share.stop()
	return writePeaks(o.peaksPath(), o.share.pool.learned())
}

func (o *Options) peaksPath() string { return filepath.Join(o.StateDir, "peaks.json") }

// CacheDir is the folder of ccache in a state folder.
func CacheDir(stateDir string) string { return filepath.Join(stateDir, "cache", "ccache") }

// callsDir has what the compilers of each row did, by row.
func callsDir(stateDir string) string { return filepath.Join(stateDir, "calls") }

// callsName is the name of the list of calls in the folder of an attempt.
const callsName = "calls.jsonl"

// addCall counts one call of a compiler.
func addCall(s *record.Compiles, r *launcher.Record) {
	s.Calls++
	switch r.Result {
	case launcher.Hit:
		s.Hits++
		if r.Remote {
			s.RemoteHits++
		}
	case launcher.Miss:
		s.Misses++
	case launcher.Failed:
		s.Failed++
	case launcher.Bypass:
		s.Bypassed++
		if s.Reasons == nil {
			s.Reasons = map[string]int{}
		}
		s.Reasons[r.Why]++
	}
	s.Seconds += r.Seconds
	s.WaitSeconds += r.WaitSeconds
	s.CPUSeconds += r.CPUSeconds
	s.ObjectBytes += r.ObjectBytes
	s.PeakMemoryBytes = max(s.PeakMemoryBytes, r.PeakMemoryBytes)
}

// shared is the part of an attempt that is about its compilers.
type shared struct {
	config *launcher.Config
	found  Compilers
	plain  map[string]string // the environment without launchers
}

func (a *attempt) shareDir() string { return filepath.Join(a.work, "share") }

// outside returns what a path inside the row's folder is called by this process.
func (a *attempt) outside(inside string) string {
	work := a.box.Inside(a.work)
	if rest, ok := strings.CutPrefix(inside, work); ok && (rest == "" || rest[0] == '/') {
		return filepath.Join(a.work, filepath.FromSlash(rest))
	}
	return ""
}

// share puts launchers before the compilers of the row and changes env so that they are found.
func (a *attempt) share(ctx context.Context, env map[string]string) (*shared, error) {
	if a.opts.share == nil || !a.Native {
		return nil, nil //nolint:nilnil // nothing is shared
	}
	dir := a.shareDir()
	for _, sub := range []string{"bin", "deps", "tmp", "inc", "objects"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			return nil, err
		}
	}
	inside := a.box.Inside(dir)
	s := &shared{plain: maps.Clone(env)}
	mappings, err := a.canonicalHeaders()
	if err != nil {
		return nil, err
	}
	cache := path.Join(a.box.Inside(a.opts.cacheDir()), "ccache")
	search := CompilerOptions{
		Program: a.box.Inside(a.opts.Kiln), Path: strings.Split(env["PATH"], ":"), Bin: path.Join(inside, "bin"), Map: mappings,
		HostCompiler: a.tools.CXX, Memo: path.Join(a.box.Inside(a.opts.cacheDir()), "compilers"), Temp: path.Join(inside, "tmp"),
	}
	if err := a.inBox(ctx, "setup", search, &s.found); err != nil {
		return nil, err
	}
	per := a.Settings.Resources.MemoryPerJobBytes
	if per == 0 {
		per = defaultMemoryPerJob
	}
	s.config = &launcher.Config{
		Row: a.Row.ID, Package: a.Row.Package, Version: a.Row.Version, Work: a.box.Inside(a.work), Bin: search.Bin, Tools: s.found.Tools,
		CCache: s.found.CCache, CacheDir: cache, CacheBytes: a.opts.CacheBytes, MemoryBytes: per, Map: mappings,
		Slots: path.Join(a.box.Inside(a.opts.share.dir), slotsSocket),
		Calls: path.Join(inside, callsName), Deps: path.Join(inside, "deps"), Temp: path.Join(inside, "tmp"),
	}
	if s.config.CacheBytes == 0 {
		s.config.CacheBytes = defaultCacheBytes
	}
	if r := a.opts.share.remote; r != nil {
		remote := *r
		remote.Socket = path.Join(a.box.Inside(a.opts.share.dir), remoteSocket)
		s.config.Remote = &remote
	}
	if a.opts.VerifyShare > 0 {
		s.config.Objects = path.Join(inside, "objects")
	}
	if err := writeJSONFile(a.launcherConfig(), s.config); err != nil {
		return nil, err
	}
	env[launcher.ConfigEnv] = a.box.Inside(a.launcherConfig())
	env["PATH"] = search.Bin + ":" + env["PATH"]
	a.nameLaunchers(env, s.found.Tools, search.Bin)
	if s.found.CCache == "" {
		fmt.Fprintf(a.log, "compiles are not shared: there is no ccache of version %d.%d or newer in %s\n", leastCCache[0], leastCCache[1], a.where())
	}
	return s, nil
}

// nameLaunchers sets the variables by which builds are told their compilers.
func (a *attempt) nameLaunchers(env map[string]string, tools map[string]launcher.Tool, bin string) {
	// torch calls its device compiler by a path of its own, unless this says otherwise; for HIP too.
	compiler := "nvcc"
	if a.Row.ROCm != "" {
		compiler = "hipcc"
	}
	if _, ok := tools[compiler]; ok && env["PYTORCH_NVCC"] == "" && (a.Row.CUDA != "" || a.Row.ROCm != "") {
		env["PYTORCH_NVCC"] = path.Join(bin, compiler)
	}
	// Makefiles and build scripts for HIP ask this one.
	if _, ok := tools["hipcc"]; ok && env["HIPCC"] == "" && a.Row.ROCm != "" {
		env["HIPCC"] = path.Join(bin, "hipcc")
	}
	// A compiler that a package's settings name by its path would be called past its launcher.
	for _, name := range []string{"CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "PYTORCH_NVCC", "HIPCC", "HIPCXX"} {
		if tool, ok := tools[path.Base(env[name])]; ok && tool.Path == env[name] {
			env[name] = path.Join(bin, path.Base(env[name]))
		}
	}
}

func (a *attempt) launcherConfig() string { return filepath.Join(a.shareDir(), "launcher.json") }

// canonicalHeaders gives what lies elsewhere in each row a name that is the same in all: the packages of the virtual
// environment, torch's where the image has it, and Python's own headers.
func (a *attempt) canonicalHeaders() ([]launcher.Mapping, error) {
	places := map[string]string{"python": a.facts.Include, "site": a.facts.SitePackages}
	if t := a.facts.Torch; t != nil && t.File != "" {
		if site := path.Dir(path.Dir(t.File)); site != a.facts.SitePackages {
			places["torch"] = site
		}
	}
	var mappings []launcher.Mapping
	for _, name := range slices.Sorted(maps.Keys(places)) {
		place := places[name]
		if !path.IsAbs(place) || path.Clean(place) == "/" {
			continue
		}
		link := filepath.Join(a.shareDir(), "inc", name)
		if err := os.Symlink(place, link); err != nil {
			return nil, err
		}
		mappings = append(mappings, launcher.Mapping{From: path.Clean(place), To: a.box.Inside(link)})
	}
	return mappings, nil
}

// inBox runs a command of kiln's launcher part where the compilers are.
func (a *attempt) inBox(ctx context.Context, name string, in, out any) error {
	from, to := filepath.Join(a.shareDir(), name+".in.json"), filepath.Join(a.shareDir(), name+".out.json")
	if err := writeJSONFile(from, in); err != nil {
		return err
	}
	env := sortedEnv(a.baseEnv(a.box, a.home(), a.temp()))
	argv := []string{a.box.Inside(a.opts.Kiln), "launcher", name, a.box.Inside(from), a.box.Inside(to)}
	if _, err := a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.work, Env: env}); err != nil {
		return err
	}
	text, err := os.ReadFile(to)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

func writeJSONFile(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return fsx.WriteFile(path, append(text, '\n'), 0o666)
}

// records takes what the launchers have written into the row's record and into the attempt's folder, also when the build
// failed.
func (a *attempt) records(s *shared) ([]launcher.Record, error) {
	if s == nil {
		return nil, nil
	}
	written := filepath.Join(a.shareDir(), callsName)
	records, err := calls.ReadRecords(written)
	if err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(written); err == nil {
		if err := os.WriteFile(filepath.Join(a.try.Dir, callsName), text, 0o666); err != nil {
			return nil, err
		}
	}
	sum := &record.Compiles{CCache: s.found.CCacheVersion}
	for i := range records {
		addCall(sum, &records[i])
	}
	a.record.Compiles = sum
	fmt.Fprintf(a.log, "%d compiles: %d from the cache, %d new, %d past it\n", sum.Calls, sum.Hits, sum.Misses, sum.Bypassed)
	for _, why := range slices.Sorted(maps.Keys(sum.Reasons)) {
		fmt.Fprintf(a.log, "  %d past the cache: %s\n", sum.Reasons[why], why)
	}
	return records, nil
}

// finishSharing keeps what is needed to explain later, and verifies a sample.
func (a *attempt) finishSharing(ctx context.Context, s *shared, records []launcher.Record) error {
	if s == nil || len(records) == 0 {
		return nil
	}
	var in calls.Inputs
	if err := a.inBox(ctx, "inputs", s.config, &in); err != nil {
		return err
	}
	in.Axes = axesOf(&a.Row)
	if err := os.MkdirAll(callsDir(a.opts.StateDir), 0o777); err != nil {
		return err
	}
	text, err := json.Marshal(&in)
	if err != nil {
		return err
	}
	if err := fsx.WriteFile(filepath.Join(callsDir(a.opts.StateDir), a.Row.ID+".json"), append(text, '\n'), 0o666); err != nil {
		return err
	}
	return a.verifyShared(ctx, s, records)
}

// axesOf are the values of a row by axis, as selections and estimates name them.
func axesOf(row *matrix.Row) map[string]string {
	axes := row.Axes.Map()
	for _, name := range []string{"version", "os", "platform", "python", "cuda", "rocm", "torch", "arch"} {
		axes[name] = row.Axis(name)
	}
	return axes
}

// verifyShared compiles a random sample of what came from the cache again, without it, and compares the objects.
func (a *attempt) verifyShared(ctx context.Context, s *shared, records []launcher.Record) error {
	if a.opts.VerifyShare == 0 {
		return nil
	}
	var hits []launcher.Record
	for _, r := range records {
		if r.Result == launcher.Hit && r.Kept != "" {
			hits = append(hits, r)
		}
	}
	rand.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
	hits = hits[:min(len(hits), a.opts.VerifyShare)]
	for i, r := range hits {
		fresh := filepath.Join(a.shareDir(), "objects", fmt.Sprintf("fresh-%d.o", i))
		argv := slices.Clone(r.Command)
		for j := range argv {
			if j > 0 && argv[j-1] == "-o" {
				argv[j] = a.box.Inside(fresh)
			} else if j > 0 && argv[j-1] == "-MF" {
				argv[j] = a.box.Inside(fresh) + ".d"
			}
		}
		dir := a.outside(r.Dir)
		if dir == "" {
			return fmt.Errorf("verify %s: it was compiled in %s, outside of the row's folder", r.Source, r.Dir)
		}
		if _, err := a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: dir, Env: sortedEnv(s.plain)}); err != nil {
			return err
		}
		verdict, err := compareObjects(a.outside(r.Kept), fresh)
		if err != nil {
			return fmt.Errorf("verify %s: %w", r.Source, err)
		}
		switch {
		case verdict.Same:
			a.record.Compiles.Verified++
		case verdict.Inconclusive:
			a.record.Compiles.Inconclusive++
		default:
			return fault("share-mismatch", "a shared object is not what the compiler makes",
				"build with --no-share, and report what `kiln cache explain` says about the file",
				"%s: section %s differs from a fresh compile", r.Source, verdict.Where)
		}
	}
	fmt.Fprintf(a.log, "verified %d of %d objects from the cache, %d inconclusive\n", a.record.Compiles.Verified, a.record.Compiles.Hits, a.record.Compiles.Inconclusive)
	return nil
}

// ReadCalls returns what the compilers of the rows of a state folder did, the rows in the order of their names.
func ReadCalls(stateDir string) ([]*calls.Inputs, error) {
	entries, err := os.ReadDir(callsDir(stateDir))
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
		in, err := calls.ReadInputs(filepath.Join(callsDir(stateDir), e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}
