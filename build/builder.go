package build

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/matrix"
)

// Options is how [Run] builds. Dir and Sandboxes must be set.
type Options struct {
	// Dir is the folder of packages.yml; paths in it are relative to it.
	Dir string
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
	// Jobs is how many rows are built at once; zero means as many as memory and
	// processors allow. CPU and MemoryBytes are what rows may use together; zero
	// means this machine.
	Jobs        int
	CPU         int
	MemoryBytes int64
	// Kiln is the path of the kiln program, which is static and is shown to the
	// environments; empty means that nothing that needs it is done there.
	Kiln string
	// NoShare compiles everything from scratch: nothing is taken from the compile cache, and nothing is put into it.
	NoShare bool
	// VerifyShare is how many objects from the compile cache are compiled again in each row, chosen at random, and compared.
	VerifyShare int
	// CacheBytes is how large the compile cache may become; zero means 20 GB.
	CacheBytes int64
	// Remote is a compile cache that is shared with other machines; an empty address means none.
	Remote share.RemoteCache
	// SlotsDir is the folder in which all kilns of a machine say what their compilers use. The default is one
	// in the system's folder for temporary files.
	SlotsDir string
	// Cluster, if set, makes the attempts on other machines, which call [RowRunner]; CPU and MemoryBytes are then what one row
	// may use. StateDir, DistDir and Dir have to be at the same paths there.
	Cluster engine.Keeper
	// Scratch is a folder of each machine's own for work folders and caches, which then are not in StateDir; empty means
	// that they are.
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

	sources *sources
	owner   string
	site    string // the owner without the row: names the folder in Scratch
	share   *share.Session
}

// Network says where packages come from and how they are reached. Only commands that
// may use the network see it.
type Network struct {
	// IndexURL is the default index for everything but torch; empty means pip's own.
	IndexURL string
	// CertFile has the certificates to trust, in PEM; empty means the system's.
	CertFile string
	// Proxies are variables such as HTTPS_PROXY=….
	Proxies []string
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

// rowOutputs is what the journal keeps of a finished row.
type rowOutputs struct {
	Files    []record.File    `json:"files"`
	Test     string           `json:"test"`
	Compiles *record.Compiles `json:"compiles,omitempty"`
}

func (a *attempt) outputs() rowOutputs {
	return rowOutputs{Files: a.record.Files, Test: a.record.Test.Result, Compiles: a.record.Compiles}
}

func (o *Options) fill() error {
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if o.StateDir == "" {
		o.StateDir = filepath.Join(o.Dir, ".kiln")
	}
	if o.DistDir == "" {
		o.DistDir = filepath.Join(o.Dir, "dist")
	}
	if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
		return err
	}
	if o.DistDir, err = filepath.Abs(o.DistDir); err != nil {
		return err
	}
	if o.Compat == nil {
		o.Compat = compat.Default()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Recipe.Sandbox = o.Sandboxes.Name()
	client, err := o.Network.client()
	if err != nil {
		return err
	}
	git := map[string]string{
		"PATH": strings.Join(o.searchPath(), ":"), "HOME": filepath.Join(o.StateDir, "home"), "LC_ALL": "C.UTF-8",
		"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1",
		// The folder may belong to another user than the one that builds.
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
	}
	if o.Network.CertFile != "" {
		git["GIT_SSL_CAINFO"] = o.Network.CertFile
	}
	for _, p := range o.Network.Proxies {
		if name, value, ok := strings.Cut(p, "="); ok {
			git[name] = value
		}
	}
	o.sources = &sources{
		dir: o.Dir, cache: filepath.Join(o.StateDir, "sources"), exclude: []string{o.StateDir, o.DistDir},
		network: o.Network, client: client, gitEnv: sortedEnv(git),
	}
	return nil
}

// client returns an HTTP client that trusts what the user trusts.
func (n Network) client() (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if n.CertFile != "" {
		text, err := os.ReadFile(n.CertFile)
		if err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificates: %s has none in PEM form", n.CertFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, Timeout: 10 * time.Minute}, nil
}

func (o *Options) cacheDir() string { return filepath.Join(o.localDir(), "cache") }

// localDir is where work folders and caches are.
func (o *Options) localDir() string {
	if o.Scratch == "" {
		return o.StateDir
	}
	return filepath.Join(o.Scratch, "kiln-"+o.site)
}

// path returns a path of packages.yml.
func (o *Options) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(o.Dir, filepath.FromSlash(p))
}

// searchPath returns the folders in which programs are looked for.
func (o *Options) searchPath() []string {
	usual := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	if o.Sandboxes.Name() != "host" || o.Path == "" {
		return usual
	}
	var dirs []string
	for dir := range strings.SplitSeq(o.Path, string(filepath.ListSeparator)) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Run builds the rows of a plan that are not there yet, and returns when nothing of it
// is running any more. Rows that fail are in the result and are no error of Run.
func Run(ctx context.Context, plan *matrix.Plan, rows []matrix.Row, opts Options) (*Result, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(opts.StateDir, 0o777); err != nil {
		return nil, err
	}
	if err := opts.ownerID(); err != nil {
		return nil, err
	}
	recipes, jobs, err := opts.jobs(ctx, plan, rows)
	if err != nil {
		return nil, err
	}
	if opts.Cluster == nil {
		if opts.share, err = opts.startSharing(ctx); err != nil {
			return nil, err
		}
	}
	local := engine.Local(func(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
		recipe := recipes[try.Job.ID]
		if reason := opts.foreign(&recipe.Row); reason != "" {
			return engine.Result{}, engine.Skip(reason)
		}
		return runAttempt(ctx, &opts, recipe, try)
	})
	local.OnSweep = func(ctx context.Context, _ []engine.Lost) error {
		_, err := opts.Sandboxes.Sweep(ctx, opts.owner)
		opts.sweepTemps()
		return err
	}
	runner, cpu, memory := engine.Runner(local), opts.CPU, opts.MemoryBytes
	if opts.Cluster != nil {
		runner, cpu, memory = &clusterRows{opts.Cluster, &opts, recipes}, 0, 0
	}
	report, err := engine.Run(ctx, jobs, engine.Options{
		Dir: opts.StateDir, Runner: runner, CPU: cpu, MemoryBytes: memory, Jobs: opts.Jobs, FailFast: opts.FailFast,
		OnEvent: opts.OnEvent, Log: opts.Log, CleanDisk: opts.cleanDisk, Reuse: opts.stillThere,
	})
	err = errors.Join(err, opts.share.Close())
	if report == nil {
		return nil, err
	}
	result := &Result{Started: report.Started, Ended: report.Ended}
	for i, job := range report.Jobs {
		r := RowResult{Row: rows[i], JobReport: job}
		if job.Status == engine.StatusDone || job.Status == engine.StatusReused {
			var bad error
			if r.Record, bad = opts.finishedRecord(ctx, rows[i].ID); bad != nil {
				err = errors.Join(err, bad)
			}
		}
		result.Rows = append(result.Rows, r)
	}
	return result, errors.Join(err, opts.learn(result))
}

// jobs resolves the sources and makes the recipes.
func (o *Options) jobs(ctx context.Context, plan *matrix.Plan, rows []matrix.Row) (map[string]*record.Recipe, []engine.Job, error) {
	known := o.sources.loadKnown()
	before, _ := json.Marshal(known)
	recipes := map[string]*record.Recipe{}
	resolved := map[string]record.Source{}
	var jobs []engine.Job
	var faults []error
	for _, row := range rows {
		settings, ok := plan.Settings(row.ID)
		if !ok {
			return nil, nil, fmt.Errorf("%s is not a row of this plan", row.ID)
		}
		key, _ := json.Marshal([]any{row.Package, row.Version, settings.Source})
		source, ok := resolved[string(key)]
		if !ok {
			var err error
			if source, err = o.sources.resolve(ctx, row, settings.Source, known); err != nil {
				faults = append(faults, err)
			}
			resolved[string(key)] = source
		}
		if err := checkSeverities(settings.Audit); err != nil {
			return nil, nil, fmt.Errorf("%s: audit: %w", row.Package, err)
		}
		recipe, err := NewRecipe(row, settings, source, o.Recipe)
		if err != nil {
			if o.foreign(&row) == "" {
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
		digest := recipe.Digest
		if o.Rebuild || o.Retest {
			digest = ""
		}
		jobs = append(jobs, engine.Job{
			ID: row.ID, Digest: digest, Class: row.Package + " " + row.CUDA + row.ROCm, Resources: o.resources(settings),
			WallLimit: wallLimit(settings), Payload: payload,
		})
	}
	if len(faults) > 0 {
		return nil, nil, errors.Join(faults...)
	}
	if after, _ := json.Marshal(known); !bytes.Equal(before, after) {
		if err := o.sources.saveKnown(known); err != nil {
			return nil, nil, err
		}
	}
	return recipes, jobs, nil
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
func (o *Options) resources(s matrix.Settings) engine.Resources {
	cpu := o.CPU
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
	budget := o.MemoryBytes
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
func (o *Options) foreign(row *matrix.Row) string {
	if row.Kind == matrix.KindSdist || row.Platform == "any" {
		return ""
	}
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if o.Sandboxes.Name() == "host" && runtime.GOOS != "linux" {
		return "kiln builds on Linux; this machine has " + runtime.GOOS
	}
	if strings.HasSuffix(row.Platform, "linux_"+arch) || strings.Contains(row.Platform, "linux_") && strings.HasSuffix(row.Platform, "_"+arch) {
		return ""
	}
	return fmt.Sprintf("a %s row needs such a machine; this one is linux_%s", row.Platform, arch)
}

// stillThere refuses to reuse a result whose files are gone or changed.
func (o *Options) stillThere(_ engine.Job, result engine.Result) error {
	var out rowOutputs
	if err := json.Unmarshal(result.Outputs, &out); err != nil {
		return err
	}
	return o.intact(out.Files)
}

// sweepTemps removes the files that a killed kiln was writing. Only attempts write calls, and none is running. The other folders may belong
// to somebody else as well, so a file there has to be older than any writer takes.
func (o *Options) sweepTemps() {
	const longest = time.Hour
	for dir, age := range map[string]time.Duration{
		share.CallsDir(o.StateDir): 0, o.StateDir: longest, o.cacheDir(): longest, o.DistDir: longest, filepath.Join(o.DistDir, record.Dir): longest,
	} {
		entries, _ := os.ReadDir(dir) // it may not be there yet
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !fsx.IsTemp(e.Name()) || !info.Mode().IsRegular() || time.Since(info.ModTime()) < age {
				continue
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				o.Log.Warn("cannot remove what a killed run left behind", "error", err)
			}
		}
	}
}

// cleanDisk removes what can be made again.
func (o *Options) cleanDisk(context.Context) error {
	return os.RemoveAll(o.cacheDir())
}

// ownerID gives the state folder a name of its own, so that what a killed run left
// behind can be told from what belongs to others.
func (o *Options) ownerID() error {
	path := filepath.Join(o.StateDir, "id")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(newID())
		if err := fsx.WriteFile(path, text, 0o666); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	o.owner = strings.TrimSpace(string(text))
	o.site = o.owner
	return nil
}

// learn writes what was measured where kiln plan looks for it.
func (o *Options) learn(result *Result) error {
	path := filepath.Join(o.StateDir, "history.json")
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
	calls, err := share.ReadCalls(o.StateDir)
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
