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

// ccacheName is the folder of compiled code among the caches.
const ccacheName = "ccache"

// callsName is the name of the list of calls in the folder of an attempt.
const callsName = "calls.jsonl"

// startSharing begins to share compiles, until the session is closed. It returns nil if nothing is
// shared: that needs a kiln that can be shown to the environments.
func (b *Builder) startSharing(ctx context.Context) (*share.Session, error) {
	if b.NoShare || b.Kiln == "" || runtime.GOOS != "linux" {
		return nil, nil //nolint:nilnil // nothing is shared
	}
	client, err := b.Network.client()
	if err != nil {
		return nil, err
	}
	s, err := share.Start(ctx, share.Options{
		StateDir: b.StateDir, CPU: b.CPU, MemoryBytes: b.MemoryBytes, SlotsDir: b.SlotsDir, Remote: b.Remote, Transport: client.Transport, Log: b.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("share compiles: %w", err)
	}
	return s, nil
}

// addCall counts one call of a compiler.
func addCall(s *record.Compiles, r *launcher.Entry) {
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

// sharing is the part of an attempt that is about its compilers. Nil means that nothing is shared.
type sharing struct {
	*attempt
	config *launcher.Config
	found  share.Compilers
	plain  map[string]string // the environment without launchers
}

func (a *attempt) shareDir() string { return filepath.Join(a.work, "share") }

// outside returns what a path inside the row's folder is called by this process.
func (s *sharing) outside(inside string) string {
	work := s.box.Inside(s.work)
	if rest, ok := strings.CutPrefix(inside, work); ok && (rest == "" || rest[0] == '/') {
		return filepath.Join(s.work, filepath.FromSlash(rest))
	}
	return ""
}

// newSharing puts launchers before the compilers of the row and changes env so that they are found.
func newSharing(ctx context.Context, a *attempt, env map[string]string) (*sharing, error) {
	if a.builder.share == nil || !a.Native {
		return nil, nil //nolint:nilnil // nothing is shared
	}
	dir := a.shareDir()
	for _, sub := range []string{"bin", "deps", "tmp", "inc", "objects"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			return nil, err
		}
	}
	inside := a.box.Inside(dir)
	s := &sharing{attempt: a, plain: maps.Clone(env)}
	mappings, err := s.canonicalHeaders()
	if err != nil {
		return nil, err
	}
	cache := path.Join(a.box.Inside(a.builder.cacheDir()), ccacheName)
	search := share.CompilerOptions{
		Program: a.box.Inside(a.builder.Kiln), Path: strings.Split(env["PATH"], ":"), Bin: path.Join(inside, "bin"), Map: mappings,
		HostCompiler: a.tools.CXX, Memo: path.Join(a.box.Inside(a.builder.cacheDir()), "compilers"), Temp: path.Join(inside, "tmp"),
	}
	search.Passes, search.Work = path.Join(inside, "passes"), a.box.Inside(a.work)
	if home := a.tools.CUDAHome; home != "" && !onWindows(a.box) {
		search.CUDAHome, search.CUDALinks = home, path.Join(inside, "cuda")
	}
	if err := s.inBox(ctx, "setup", search, &s.found); err != nil {
		return nil, err
	}
	if _, ok := s.found.Tools["nvcc"]; ok && search.CUDALinks != "" {
		real := search.CUDAHome
		for _, m := range mappings {
			if rest, ok := strings.CutPrefix(real, m.From+"/"); ok {
				real = m.To + "/" + rest
			}
		}
		mappings = append([]launcher.Mapping{{From: search.CUDALinks, To: real}}, mappings...)
		for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
			if env[name] == search.CUDAHome {
				env[name] = search.CUDALinks
			}
		}
	}
	per := a.Settings.Resources.MemoryPerJobBytes
	if per == 0 {
		per = defaultMemoryPerJob
	}
	s.config = &launcher.Config{
		Row: a.Row.ID, Package: a.Row.Package, Version: a.Row.Version, Work: a.box.Inside(a.work), Bin: search.Bin, Passes: search.Passes, Place: s.found.Place, Program: search.Program, Tools: s.found.Tools,
		CCache: s.found.CCache, CacheDir: cache, CacheBytes: a.builder.CacheBytes, MemoryBytes: per, Map: mappings,
		OneThread: a.try.Shrink > 0, Calls: path.Join(inside, callsName), Deps: path.Join(inside, "deps"), Temp: path.Join(inside, "tmp"),
	}
	if s.config.CacheBytes == 0 {
		s.config.CacheBytes = defaultCacheBytes
	}
	a.builder.share.Connect(s.config, a.box.Inside(a.builder.share.Dir))
	if a.builder.VerifyShare > 0 {
		s.config.Objects = path.Join(inside, "objects")
	}
	if err := writeJSONFile(s.launcherConfig(), s.config); err != nil {
		return nil, err
	}
	env[launcher.ConfigEnv] = a.box.Inside(s.launcherConfig())
	env["PATH"] = search.Bin + ":" + env["PATH"]
	if env[launcher.PassVariable] == "" {
		env[launcher.PassVariable] = search.Passes
	}
	nameLaunchers(&a.Row, env, s.found.Tools, search.Bin)
	if s.found.CCache == "" {
		a.warn("compiles are not shared: there is no ccache of version %d.%d or newer in %s; on Debian and Ubuntu: apt-get install ccache", share.LeastCCache[0], share.LeastCCache[1], a.where())
	}
	return s, nil
}

// nameLaunchers sets the variables by which builds are told their compilers.
func nameLaunchers(row *matrix.Row, env map[string]string, tools map[string]launcher.Tool, bin string) {
	// torch calls its device compiler by a path of its own, unless this says otherwise; for HIP
	// too.
	compiler := "nvcc"
	if row.ROCm != "" {
		compiler = "hipcc"
	}
	if _, ok := tools[compiler]; ok && env["PYTORCH_NVCC"] == "" && (row.CUDA != "" || row.ROCm != "") {
		env["PYTORCH_NVCC"] = path.Join(bin, compiler)
	}
	// Makefiles and build scripts for HIP ask this one.
	if _, ok := tools["hipcc"]; ok && env["HIPCC"] == "" && row.ROCm != "" {
		env["HIPCC"] = path.Join(bin, "hipcc")
	}
	// A compiler that a package's settings name by its path would be called past its launcher.
	for _, name := range []string{"CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "PYTORCH_NVCC", "HIPCC", "HIPCXX"} {
		if tool, ok := tools[path.Base(env[name])]; ok && tool.Path == env[name] {
			env[name] = path.Join(bin, path.Base(env[name]))
		}
	}
}

func (s *sharing) launcherConfig() string { return filepath.Join(s.shareDir(), "launcher.json") }

// canonicalHeaders gives what lies elsewhere in each row a name that is the same in all: the
// packages of the virtual environment, torch's where the image has it, and Python's own headers.
func (s *sharing) canonicalHeaders() ([]launcher.Mapping, error) {
	places := map[string]string{"python": s.facts.Include, "site": s.facts.SitePackages}
	if t := s.facts.Torch; t != nil && t.File != "" {
		if site := path.Dir(path.Dir(t.File)); site != s.facts.SitePackages {
			places["torch"] = site
		}
	}
	var mappings []launcher.Mapping
	for _, name := range slices.Sorted(maps.Keys(places)) {
		place := places[name]
		if !path.IsAbs(place) || path.Clean(place) == "/" {
			continue
		}
		link := filepath.Join(s.shareDir(), "inc", name)
		if err := os.Symlink(place, link); err != nil {
			return nil, err
		}
		mappings = append(mappings, launcher.Mapping{From: path.Clean(place), To: s.box.Inside(link)})
	}
	return mappings, nil
}

// inBox runs a command of kiln's launcher part where the compilers are.
func (s *sharing) inBox(ctx context.Context, name string, in, out any) error {
	from, to := filepath.Join(s.shareDir(), name+".in.json"), filepath.Join(s.shareDir(), name+".out.json")
	if err := writeJSONFile(from, in); err != nil {
		return err
	}
	env := sortedEnv(s.baseEnv(s.box))
	argv := []string{s.box.Inside(s.builder.Kiln), "launcher", name, s.box.Inside(from), s.box.Inside(to)}
	if _, err := s.command(ctx, s.box, sandbox.Command{Argv: argv, Dir: s.work, Env: env}); err != nil {
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

// records takes what the launchers have written into the row's record and into the attempt's
// folder, also when the build failed.
func (s *sharing) records() ([]launcher.Entry, error) {
	if s == nil {
		return nil, nil
	}
	written := filepath.Join(s.shareDir(), callsName)
	records, err := calls.ReadRecords(written)
	if err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(written); err == nil {
		if err := os.WriteFile(filepath.Join(s.try.Dir, callsName), text, 0o666); err != nil {
			return nil, err
		}
	}
	sum := &record.Compiles{CCache: s.found.CCacheVersion}
	for i := range records {
		addCall(sum, &records[i])
	}
	s.record.Compiles = sum
	fmt.Fprintf(s.log, "%d compiles: %d from the cache, %d new, %d past it\n", sum.Calls, sum.Hits, sum.Misses, sum.Bypassed)
	for _, why := range slices.Sorted(maps.Keys(sum.Reasons)) {
		fmt.Fprintf(s.log, "  %d past the cache: %s\n", sum.Reasons[why], why)
	}
	return records, nil
}

// finish keeps what is needed to explain later, and verifies a sample.
func (s *sharing) finish(ctx context.Context, records []launcher.Entry) error {
	if s == nil || len(records) == 0 {
		return nil
	}
	var in calls.Inputs
	if err := s.inBox(ctx, "inputs", s.config, &in); err != nil {
		return err
	}
	in.Axes = axesOf(&s.Row)
	if text := in.Python(); text != "" {
		s.warn("%s", text)
	}
	if err := share.WriteCalls(s.builder.StateDir, &in); err != nil {
		return err
	}
	return s.verify(ctx, records)
}

// axesOf are the values of a row by axis, as selections and estimates name them.
func axesOf(row *matrix.Row) map[string]string {
	axes := row.Axes.Map()
	for _, name := range []string{"version", "os", "platform", "python", "cuda", "rocm", "torch", "arch"} {
		axes[name] = row.Axis(name)
	}
	return axes
}

// verify compiles a random sample of what came from the cache again, without it, and compares the
// objects.
func (s *sharing) verify(ctx context.Context, records []launcher.Entry) error {
	if s.builder.VerifyShare == 0 {
		return nil
	}
	var hits []launcher.Entry
	for _, r := range records {
		if r.Result == launcher.Hit && r.Kept != "" {
			hits = append(hits, r)
		}
	}
	rand.Shuffle(len(hits), func(i, j int) { hits[i], hits[j] = hits[j], hits[i] })
	hits = hits[:min(len(hits), s.builder.VerifyShare)]
	for i, r := range hits {
		fresh := filepath.Join(s.shareDir(), "objects", fmt.Sprintf("fresh-%d.o", i))
		argv := slices.Clone(r.Command)
		for j := range argv {
			if j > 0 && argv[j-1] == "-o" {
				argv[j] = s.box.Inside(fresh)
			} else if j > 0 && argv[j-1] == "-MF" {
				argv[j] = s.box.Inside(fresh) + ".d"
			}
		}
		if r.Place != "" {
			argv = launcher.At(s.config.Program, s.config.Work, argv)
		}
		dir := s.outside(r.Dir)
		if dir == "" {
			return fmt.Errorf("verify %s: it was compiled in %s, outside of the row's folder", r.Source, r.Dir)
		}
		if _, err := s.command(ctx, s.box, sandbox.Command{Argv: argv, Dir: dir, Env: sortedEnv(s.plain)}); err != nil {
			return err
		}
		verdict, err := share.CompareObjects(s.outside(r.Kept), fresh, r.Place != "" || launcher.LineTables(r.Args))
		if err != nil {
			return fmt.Errorf("verify %s: %w", r.Source, err)
		}
		switch {
		case verdict.Same:
			s.record.Compiles.Verified++
		case verdict.Inconclusive:
			s.record.Compiles.Inconclusive++
		default:
			return fault("share-mismatch", "a shared object is not what the compiler makes",
				"build with --no-share, and report what `kiln cache explain` says about the file",
				"%s: section %s differs from a fresh compile", r.Source, verdict.Where)
		}
	}
	fmt.Fprintf(s.log, "verified %d of %d objects from the cache, %d inconclusive\n", s.record.Compiles.Verified, s.record.Compiles.Hits, s.record.Compiles.Inconclusive)
	return nil
}
