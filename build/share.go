package build

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
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
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
)

// insideSlots is where environments see the sockets of the pool and of the remote cache.
const insideSlots = "/kiln/slots"

// defaultCacheBytes is how much compiled code is kept.
const defaultCacheBytes = 20e9

// callsName is the name of the list of calls in the folder of an attempt.
const callsName = "calls.jsonl"

// startSharing begins to share compiles, until the session is closed. It returns nil if nothing is
// shared: that needs a kiln that can be shown to the environments.
func (o *Options) startSharing(ctx context.Context) (*share.Session, error) {
	if o.NoShare || o.Kiln == "" || runtime.GOOS != "linux" {
		return nil, nil //nolint:nilnil // nothing is shared
	}
	client, err := o.Network.client()
	if err != nil {
		return nil, err
	}
	s, err := share.Start(ctx, share.Options{
		StateDir: o.StateDir, CPU: o.CPU, MemoryBytes: o.MemoryBytes, SlotsDir: o.SlotsDir, Remote: o.Remote, Transport: client.Transport, Log: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("share compiles: %w", err)
	}
	return s, nil
}

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
	found  share.Compilers
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
	search := share.CompilerOptions{
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
		Calls: path.Join(inside, callsName), Deps: path.Join(inside, "deps"), Temp: path.Join(inside, "tmp"),
	}
	if s.config.CacheBytes == 0 {
		s.config.CacheBytes = defaultCacheBytes
	}
	a.opts.share.Connect(s.config, a.box.Inside(a.opts.share.Dir))
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
		fmt.Fprintf(a.log, "compiles are not shared: there is no ccache of version %d.%d or newer in %s\n", share.LeastCCache[0], share.LeastCCache[1], a.where())
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
	if err := share.WriteCalls(a.opts.StateDir, &in); err != nil {
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
		verdict, err := share.CompareObjects(a.outside(r.Kept), fresh)
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
