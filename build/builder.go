package build

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/matrix"
)

// Options is how a [Builder] builds. Dir and Sandboxes must be set.
type Options struct {
	// Dir is the folder of packages.yml; paths in it are relative to it.
	Dir string
	// File is the packages.yml that the plan came from, if there is one.
	File string
	// StateDir holds the journal, logs, caches and work folders. Default Dir/.kiln.
	StateDir string
	// DistDir gets the files and their records. Default Dir/dist.
	DistDir string
	// Sandboxes makes the environments.
	Sandboxes sandbox.Maker
	// Compat knows which compilers go with which toolkit. Default compat.Default().
	Compat *compat.Table
	// Recipe are the choices that enter every recipe; Sandbox is filled in.
	Recipe RecipeOptions
	// Network says how the outer world is reached.
	Network Network
	// Path is the search path for programs on the host; in containers, and if it is
	// empty, the usual folders are searched.
	Path string
	// Host is this machine, where rows are built on it; nil means without variables.
	Host *machine.Host
	// MSVC is the toolset of Windows rows whose variables name none, such as "14.39"; empty means
	// the newest that the row's CUDA takes.
	MSVC string
	// LongPaths says that the programs of this Windows take paths of any length.
	LongPaths bool
	// Pythons are further places of interpreters on the host; see [FindPythons].
	Pythons []string
	// StoreDir is where Pythons and programs are kept that images and machines lack, once for all
	// projects. Default StateDir/store.
	StoreDir string
	// Prune removes an image that kiln pulled or completed when no further row needs it.
	Prune bool
	// Jobs is how many rows are built at once; zero means as many as memory and
	// processors allow. CPU and MemoryBytes are what rows may use together; zero
	// means this machine.
	Jobs        int
	CPU         int
	MemoryBytes int64
	// Kiln is the path of the kiln program, which is static and is shown to the
	// environments; empty means that nothing that needs it is done there.
	Kiln string
	// NoShare compiles everything from scratch: nothing is taken from the compile cache, and
	// nothing is put into it.
	NoShare bool
	// VerifyShare is how many objects from the compile cache are compiled again in each row, chosen
	// at random, and compared.
	VerifyShare int
	// CacheBytes is how large the compile cache may become; zero means 20 GB.
	CacheBytes int64
	// Remote is a compile cache that is shared with other machines; an empty address means none.
	Remote share.RemoteCache
	// SlotsDir is the folder in which all kilns of a machine say what their compilers use. The
	// default is one in the system's folder for temporary files.
	SlotsDir string
	// Cluster, if set, makes the attempts on other machines, which call [RowRunner]; CPU and
	// MemoryBytes are then what one row may use. StateDir, DistDir and Dir have to be at the same
	// paths there.
	Cluster engine.Keeper
	// Scratch is a folder of each machine's own for work folders and caches, which then are not in
	// StateDir; empty means that they are.
	Scratch string
	// HaveGPU says that tests may use a GPU of this machine.
	HaveGPU bool
	// Rebuild builds also what is there already; Retest tests it again.
	Rebuild, Retest bool
	// FailFast stops at the first row that fails.
	FailFast bool
	// KeepWork keeps the folders of rows that succeeded too.
	KeepWork bool
	// OnEvent gets the engine's events. Log gets what is not about a row.
	OnEvent func(engine.Event)
	Log     *slog.Logger
}

// Builder builds rows with one set of options. Its methods are not for use at the same time.
type Builder struct {
	Options

	sources *sources
	store   *toolStore
	owner   string
	site    string           // the owner without the row: names the folder in Scratch
	share   *share.Session   // nil if nothing is shared
	bad     map[string]error // why rows have no source, by id

	developers developers
}

// Network says where packages come from and how they are reached. Only commands that
// may use the network see it.
type Network struct {
	// IndexURL is the default index for everything but torch; empty means pip's own.
	IndexURL string
	// Credentials are those of all addresses, which have none themselves; nil means none.
	Credentials *secret.Store
	// CertFile has the certificates to trust, in PEM; empty means the system's.
	CertFile string
	// Proxies are variables such as HTTPS_PROXY=…; see ProxyEnv.
	Proxies []string
	// PythonMirror is where uv gets Pythons in place of its own address, and PythonDownloads the
	// list of those that there are: its UV_PYTHON_INSTALL_MIRROR and UV_PYTHON_DOWNLOADS_JSON_URL.
	PythonMirror, PythonDownloads string
}

// RowResult is how one row ended.
type RowResult struct {
	Row matrix.Row
	engine.JobReport
	// Record is nil if there is none: the row failed or was skipped.
	Record *record.Record
}

// Result is how a run ended, rows in the order of the plan.
type Result struct {
	Rows           []RowResult
	Started, Ended time.Time
}

// Count returns how many rows have one of the states.
func (r *Result) Count(states ...engine.Status) int {
	n := 0
	for i := range r.Rows {
		if slices.Contains(states, r.Rows[i].Status) {
			n++
		}
	}
	return n
}

// New completes the options and makes a builder of them.
func New(opts Options) (*Builder, error) {
	b := &Builder{Options: opts}
	if err := b.setFolders(); err != nil {
		return nil, err
	}
	if b.Compat == nil {
		b.Compat = compat.Default()
	}
	if b.Host == nil {
		b.Host = machine.Local(nil)
	}
	if b.Log == nil {
		b.Log = slog.New(slog.DiscardHandler)
	}
	b.Recipe.Sandbox = b.Sandboxes.Name()
	client, err := b.Network.client()
	if err != nil {
		return nil, err
	}
	b.sources = &sources{
		dir: b.Dir, cache: filepath.Join(b.StateDir, "sources"), exclude: []string{b.StateDir, b.DistDir, b.StoreDir},
		network: b.Network, client: client, gitEnv: b.gitEnv(),
	}
	b.store = &toolStore{dir: b.StoreDir, sources: b.sources, network: b.Network, path: b.hostPath()}
	return b, nil
}

func (b *Builder) setFolders() (err error) {
	if b.Dir, err = filepath.Abs(b.Dir); err != nil {
		return err
	}
	b.StateDir = cmp.Or(b.StateDir, filepath.Join(b.Dir, ".kiln"))
	b.DistDir = cmp.Or(b.DistDir, filepath.Join(b.Dir, "dist"))
	if b.StateDir, err = filepath.Abs(b.StateDir); err != nil {
		return err
	}
	b.StoreDir = cmp.Or(b.StoreDir, filepath.Join(b.StateDir, "store"))
	if b.StoreDir, err = filepath.Abs(b.StoreDir); err != nil {
		return err
	}
	b.DistDir, err = filepath.Abs(b.DistDir)
	return err
}

// gitConfigs is how many settings gitEnv has.
const gitConfigs = 1

// gitEnv is the environment of git, which fetches sources outside of the sandboxes.
func (b *Builder) gitEnv() []string {
	git := map[string]string{
		"PATH": strings.Join(b.hostPath(), string(filepath.ListSeparator)), "HOME": filepath.Join(b.StateDir, "home"), "LC_ALL": "C.UTF-8",
		"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1",
		// The folder may belong to another user than the one that builds.
		"GIT_CONFIG_COUNT": strconv.Itoa(gitConfigs), "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
	}
	for _, name := range systemVariables {
		if value, ok := b.Host.LookupEnv(name); ok {
			git[name] = value
		}
	}
	if b.Network.CertFile != "" {
		git["GIT_SSL_CAINFO"] = b.Network.CertFile
	}
	for _, p := range b.Network.ProxyEnv() {
		if name, value, ok := strings.Cut(p, "="); ok {
			git[name] = value
		}
	}
	return sortedEnv(git)
}

func (b *Builder) cacheDir() string { return filepath.Join(b.localDir(), "cache") }

// localDir is where work folders and caches are.
func (b *Builder) localDir() string {
	if b.Scratch == "" {
		return b.StateDir
	}
	return filepath.Join(b.Scratch, "kiln-"+b.site)
}

// path returns a path of packages.yml.
func (b *Builder) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(b.Dir, filepath.FromSlash(p))
}

// searchPath returns the folders in which programs are looked for.
func (b *Builder) searchPath() []string {
	if b.Sandboxes.Name() != "host" {
		return usualPath
	}
	return b.hostPath()
}

var usualPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// hostPath returns the folders of programs on the host.
func (b *Builder) hostPath() []string {
	if b.Path == "" {
		return usualPath
	}
	var dirs []string
	for dir := range strings.SplitSeq(b.Path, string(filepath.ListSeparator)) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Run builds the rows of a plan that are not there yet, and returns when nothing of it
// is running any more. Rows that fail are in the result and are no error of Run.
func (b *Builder) Run(ctx context.Context, plan *matrix.Plan, rows []matrix.Row) (*Result, error) {
	if err := b.ownerID(); err != nil {
		return nil, err
	}
	if err := b.checkDist(); err != nil {
		return nil, err
	}
	recipes, jobs, err := b.jobs(ctx, plan, rows)
	if err != nil {
		return nil, err
	}
	// Another kiln that is at work here has its own plan, and the engine will say so.
	if _, busy := engine.Active(b.StateDir); !busy {
		if err := record.WritePlan(b.StateDir, &record.Plan{File: b.File, Dist: b.DistDir, Rows: plan.Rows, Skipped: plan.Skipped}); err != nil {
			return nil, err
		}
	}
	if b.Cluster == nil {
		if b.share, err = b.startSharing(ctx); err != nil {
			return nil, err
		}
	}
	runner, cpu, memory := b.runner(recipes), b.CPU, b.MemoryBytes
	if b.Cluster != nil {
		cpu, memory = 0, 0
	}
	prune := b.newPruning(recipes)
	report, err := engine.Run(ctx, jobs, engine.Options{
		Dir: b.StateDir, Runner: runner, CPU: cpu, MemoryBytes: memory, Jobs: b.Jobs, FailFast: b.FailFast,
		OnEvent: prune.follow(ctx, b.OnEvent), Log: b.Log, CleanDisk: b.cleanDisk, Reuse: b.stillThere,
	})
	prune.wait()
	err = errors.Join(err, b.share.Close())
	b.share = nil
	if report == nil {
		return nil, err
	}
	result := &Result{Started: report.Started, Ended: report.Ended}
	for i, job := range report.Jobs {
		r := RowResult{Row: rows[i], JobReport: job}
		if job.Status == engine.StatusDone || job.Status == engine.StatusReused {
			var bad error
			if r.Record, bad = b.finishedRecord(ctx, rows[i].ID); bad != nil {
				err = errors.Join(err, bad)
			}
		}
		result.Rows = append(result.Rows, r)
	}
	return result, errors.Join(err, b.learn(result))
}

// Run builds rows with a new [Builder].
func Run(ctx context.Context, plan *matrix.Plan, rows []matrix.Row, opts Options) (*Result, error) {
	b, err := New(opts)
	if err != nil {
		return nil, err
	}
	return b.Run(ctx, plan, rows)
}

// runner makes the attempts: here, or on the machines of the cluster.
func (b *Builder) runner(recipes map[string]*record.Recipe) engine.Runner {
	if b.Cluster != nil {
		return &clusterRows{b.Cluster, b, recipes}
	}
	local := engine.Local(func(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
		recipe := recipes[try.Job.ID]
		if reason := b.foreign(&recipe.Row); reason != "" {
			return engine.Result{}, engine.Skip(reason)
		}
		if err := b.bad[try.Job.ID]; err != nil {
			return engine.Result{}, engine.Fail(engine.CauseFault, &RowError{Row: recipe.Row.ID, Stage: "fetch", Err: err})
		}
		return b.attempt(ctx, recipe, try)
	})
	local.OnSweep = func(ctx context.Context, _ []engine.Lost) error {
		_, err := b.Sandboxes.Sweep(ctx, b.owner)
		b.sweepTemps()
		return err
	}
	return local
}

// sourceKey is equal for rows with the same source.
func sourceKey(row *matrix.Row, s matrix.Settings) string {
	key, _ := json.Marshal([]any{row.Package, row.Version, s.Source}) // plain data, cannot fail
	return string(key)
}

// jobs resolves the sources and makes the recipes.
func (b *Builder) jobs(ctx context.Context, plan *matrix.Plan, rows []matrix.Row) (map[string]*record.Recipe, []engine.Job, error) {
	known := b.sources.loadKnown()
	before, _ := json.Marshal(known)
	recipes := map[string]*record.Recipe{}
	resolved, unresolved := map[string]record.Source{}, map[string]error{}
	b.bad = map[string]error{}
	var jobs []engine.Job
	var faults []error
	for _, row := range rows {
		settings, ok := plan.Settings(row.ID)
		if !ok {
			return nil, nil, fmt.Errorf("%s is not a row of this plan", row.ID)
		}
		key := sourceKey(&row, settings)
		source, ok := resolved[key]
		if !ok {
			if source, unresolved[key] = b.sources.resolve(ctx, row, settings.Source, known); ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			resolved[key] = source
		}
		if err := cmp.Or(unresolved[key], b.checkPaths(settings)); err != nil {
			b.bad[row.ID] = err
		}
		if err := checkSeverities(settings.Audit); err != nil {
			return nil, nil, fmt.Errorf("%s: audit: %w", row.Package, err)
		}
		recipe, err := NewRecipe(row, settings, source, b.Recipe)
		if err != nil {
			if b.foreign(&row) == "" {
				faults = append(faults, err)
				continue
			}
			recipe = &record.Recipe{Row: row, Settings: settings} // it will be skipped
		}
		recipes[row.ID] = recipe
		payload, err := json.Marshal(recipe)
		if err != nil {
			return nil, nil, err
		}
		payload = []byte(secret.Clean(string(payload))) // it goes into the journal
		digest := recipe.Digest
		if b.Rebuild || b.Retest {
			digest = ""
		}
		jobs = append(jobs, engine.Job{
			ID: row.ID, Digest: digest, Class: row.Package + " " + row.CUDA + row.ROCm, Resources: b.resources(settings),
			WallLimit: wallLimit(settings), Payload: payload,
		})
	}
	settingsOf := func(id string) matrix.Settings { s, _ := plan.Settings(id); return s }
	arrange(ReuseClasses(rows, settingsOf, b.Compat), jobs)
	nameDonors(ReuseClasses(plan.Rows, settingsOf, b.Compat), recipes, func(id string) string {
		if r := recipes[id]; r != nil {
			return r.BuildDigest
		}
		i := slices.IndexFunc(plan.Rows, func(r matrix.Row) bool { return r.ID == id })
		row, settings := plan.Rows[i], settingsOf(id)
		source, ok := resolved[sourceKey(&row, settings)]
		if !ok {
			return ""
		}
		r, err := NewRecipe(row, settings, source, b.Recipe)
		if err != nil {
			return "" // it was not built either
		}
		return r.BuildDigest
	})
	inOrder(rows, settingsOf, jobs)
	for i := range jobs {
		recipe := recipes[jobs[i].ID]
		if parts := plan.Parts(recipe.Row.ID); len(parts) > 0 && recipe.Format != "" {
			for k := range parts {
				if recipes[parts[k].ID] != nil {
					jobs[i].After = append(jobs[i].After, parts[k].ID)
				}
				recipe.Parts = append(recipe.Parts, b.part(&parts[k], recipes))
			}
			recipe.Seal()
			if jobs[i].Digest != "" {
				jobs[i].Digest = recipe.Digest
			}
		}
		if len(recipe.Donors) > 0 || len(recipe.Parts) > 0 {
			payload, err := json.Marshal(recipe)
			if err != nil {
				return nil, nil, err
			}
			jobs[i].Payload = []byte(secret.Clean(string(payload)))
		}
	}
	if b.Cluster != nil { // its workers see the recipes only
		faults = slices.AppendSeq(faults, maps.Values(b.bad))
	}
	if len(faults) > 0 {
		return nil, nil, errors.Join(faults...)
	}
	if after, _ := json.Marshal(known); !bytes.Equal(before, after) {
		if err := b.sources.saveKnown(known); err != nil {
			return nil, nil, err
		}
	}
	return recipes, jobs, nil
}

// checkPaths looks for the folders that a row needs besides its source.
func (b *Builder) checkPaths(settings matrix.Settings) error {
	if t := settings.TorchSource; t.Kind == "path" {
		if _, err := os.Stat(b.path(t.Location)); err != nil {
			return fmt.Errorf("torch_source: %w", err)
		}
	}
	return nil
}

// checkDist makes the folder of finished files and writes to it: compiling first and failing then
// would cost more.
func (b *Builder) checkDist() error {
	err := os.MkdirAll(filepath.Join(b.DistDir, record.Dir), 0o777)
	if err == nil {
		var f *fsx.AtomicFile
		if f, err = fsx.Create(filepath.Join(b.DistDir, "kiln-writes-here")); err == nil {
			err = f.Abort()
		}
	}
	if err != nil {
		return fmt.Errorf("the folder for finished files cannot be written: %w\n  name another with --dist", err)
	}
	return nil
}

// Limits of a row that says nothing itself.
const (
	defaultMemoryPerJob = 2 << 30
	defaultWallTime     = 2 * time.Hour
)

func wallLimit(s matrix.Settings) time.Duration {
	if s.Resources.WallTime > 0 {
		return time.Duration(s.Resources.WallTime)
	}
	return defaultWallTime
}

// resources is what a row asks for as long as nothing was learned: as many compilers as
// there are processors, fewer if memory does not suffice for so many.
func (b *Builder) resources(s matrix.Settings) engine.Resources {
	cpu := b.CPU
	if cpu == 0 {
		cpu = runtime.NumCPU()
	}
	jobs := s.Resources.Jobs
	if jobs == 0 || jobs > cpu {
		jobs = cpu
	}
	per := s.Resources.MemoryPerJobBytes
	if per == 0 {
		per = defaultMemoryPerJob
	}
	per *= int64(max(1, s.Resources.NVCCThreads))
	budget := b.MemoryBytes
	if budget == 0 {
		if m, err := memory.Read(); err == nil {
			budget = m.BudgetBytes()
		} else {
			budget = per // one at a time where nothing is known
		}
	}
	if fit := int(budget / per); fit < jobs {
		jobs = max(1, fit)
	}
	return engine.Resources{CPU: jobs, MemoryBytes: per * int64(jobs), DiskBytes: s.Resources.DiskBytes}
}

// foreign says why this machine cannot build a row at all, or "".
func (b *Builder) foreign(row *matrix.Row) string {
	if row.Kind == matrix.KindSdist || row.Platform == "any" {
		return ""
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if !matrix.CanBuild(row.Platform) {
		return fmt.Sprintf("kiln does not build %s rows", row.Platform)
	}
	here := "linux_" + arch
	if b.Sandboxes.Name() == "host" && runtime.GOOS != "linux" {
		here = runtime.GOOS + "_" + arch
		if runtime.GOOS == "windows" {
			here = "win_" + runtime.GOARCH
		}
	}
	system, _, _ := strings.Cut(here, "_")
	if row.Platform == here || system == "linux" && strings.Contains(row.Platform, "linux_") && strings.HasSuffix(row.Platform, "_"+arch) {
		return ""
	}
	return fmt.Sprintf("a %s row needs such a machine; this one is %s", row.Platform, here)
}

// stillThere refuses to reuse a result whose files are gone or changed.
func (b *Builder) stillThere(job engine.Job, result engine.Result) error {
	var out record.Outputs
	if err := json.Unmarshal(result.Outputs, &out); err != nil {
		return err
	}
	if out.Proof != "" {
		var recipe record.Recipe
		if err := json.Unmarshal(job.Payload, &recipe); err != nil {
			return err
		}
		if !keptProof(out.Proof, recipe.Settings.Reuse) {
			return fmt.Errorf("it was proven by %s", out.Proof)
		}
	}
	return b.intact(out.Files)
}

// sweepTemps removes the files that a killed kiln was writing. Only attempts write calls, and none
// is running. The other folders may be used by others as well, so a file there has to be older than
// any writer takes.
func (b *Builder) sweepTemps() {
	const longest = time.Hour
	for dir, age := range map[string]time.Duration{
		share.CallsDir(b.StateDir): 0, b.StateDir: longest, b.cacheDir(): longest, b.DistDir: longest, filepath.Join(b.DistDir, record.Dir): longest,
	} {
		entries, _ := os.ReadDir(dir) // it may not be there yet
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !fsx.IsTemp(e.Name()) || !info.Mode().IsRegular() || time.Since(info.ModTime()) < age {
				continue
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				b.Log.Warn("cannot remove what a killed run left behind", "error", err)
			}
		}
	}
}

// diskReserve is what must be free for another attempt.
const diskReserve = 2 << 30

// cleanDisk removes what can be made again: downloads and tools first, and what took hours of
// compiling only if that is not enough.
func (b *Builder) cleanDisk(context.Context) error {
	for _, dir := range []string{filepath.Join(b.StoreDir, wheelsDir), b.cacheDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if name := e.Name(); name != ccacheName && name != "compilers" {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	if free, err := fsx.FreeSpace(b.cacheDir()); err == nil && free >= diskReserve {
		return nil
	}
	b.Log.Warn("the disk is full: the compile cache is removed too")
	return os.RemoveAll(filepath.Join(b.cacheDir(), ccacheName))
}

func (b *Builder) ownerID() (err error) {
	b.owner, err = OwnerID(b.StateDir)
	b.site = b.owner
	return err
}

// OwnerID returns the name that a state folder has for what it leaves elsewhere, so that what a
// killed run left behind can be told from what belongs to others. It is made if it is missing.
func OwnerID(stateDir string) (string, error) {
	if err := os.MkdirAll(stateDir, 0o777); err != nil {
		return "", err
	}
	path := filepath.Join(stateDir, "id")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(newID())
		err = fsx.WriteFile(path, text, 0o666)
	}
	return strings.TrimSpace(string(text)), err
}

// learn writes what was measured where kiln plan looks for it.
func (b *Builder) learn(result *Result) error {
	path := filepath.Join(b.StateDir, "history.json")
	history := &matrix.History{}
	if f, err := os.Open(path); err == nil {
		old, err := matrix.ReadHistory(f)
		_ = f.Close()
		if err == nil {
			history = old
		}
	}
	changed := false
	for _, r := range result.Rows {
		if r.Status != engine.StatusDone || r.Record == nil || r.Record.Built != nil {
			continue
		}
		m := matrix.Measured{Seconds: r.Wall.Seconds(), PeakMemoryBytes: r.JobReport.Result.PeakMemoryBytes, DiskBytes: r.JobReport.Result.DiskBytes}
		for _, f := range r.Record.Files {
			m.FileBytes += f.Size
		}
		if history.Rows == nil {
			history.Rows = map[string]matrix.Measured{}
		}
		history.Rows[r.Row.ID] = m
		changed = true
	}
	if !changed {
		return nil
	}
	calls, err := share.ReadCalls(b.StateDir)
	if err != nil {
		return err
	}
	for name, classes := range share.LearnUnits(calls) {
		if history.Units == nil {
			history.Units = map[string][]matrix.UnitClass{}
		}
		history.Units[name] = classes
	}
	var text bytes.Buffer
	if err := history.Write(&text); err != nil {
		return err
	}
	return fsx.WriteFile(path, text.Bytes(), 0o666)
}
