package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
)

// slurmFile is where an administrator says once how kiln uses the cluster.
const slurmFile = "/etc/kiln/slurm.json"

// slurmConfig is that file. docs/cluster.md explains the fields.
type slurmConfig struct {
	Partition  string   `json:"partition"`
	Account    string   `json:"account"`
	QOS        string   `json:"qos"`
	Constraint string   `json:"constraint"`
	Args       []string `json:"args"`
	// Sandbox is what rows are built in on a node: host, podman or docker. Prefix stands before kiln in the job.
	Sandbox string   `json:"sandbox"`
	Prefix  []string `json:"prefix"`
	// CPUs and Memory are what a row may use at most.
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory"`
	// MaxPerArray limits the tasks of one array that run at once, MaxQueued all rows that Slurm has, running ones among them.
	MaxPerArray int `json:"max_running_per_array"`
	MaxQueued   int `json:"max_queued"`
	// Scratch is a folder of each node's own. CacheRemote is the compile cache of the site.
	Scratch     string `json:"scratch"`
	CacheRemote string `json:"cache_remote"`
	// TimeLimit is that of the queue, if it is not the partition's. Grace, Poll and Beat are those of package slurm.
	TimeLimit duration `json:"time_limit"`
	Grace     duration `json:"grace"`
	Poll      duration `json:"poll"`
	Beat      duration `json:"beat"`
}

// duration is a time such as "90s" in JSON.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	*d = duration(v)
	return err
}

// readSlurmConfig reads the file that the flag or the environment names, else the site's if there is one.
func readSlurmConfig(name string) (*slurmConfig, error) {
	c := &slurmConfig{}
	name = cmp.Or(name, os.Getenv("KILN_SLURM_CONFIG"))
	given := name != ""
	name = cmp.Or(name, slurmFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--slurm-config: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			field = strings.Trim(field, `"`)
			near := diag.Suggest(field, []string{
				"partition", "account", "qos", "constraint", "args", "sandbox", "prefix", "cpus", "memory", "max_running_per_array", "max_queued", "scratch",
				"cache_remote", "time_limit", "grace", "poll", "beat",
			})
			if near != "" {
				near = "; did you mean " + near + "?"
			}
			return nil, fmt.Errorf("%s: there is no setting %q%s", name, field, near)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !slices.Contains([]string{"", "host", "podman", "docker"}, c.Sandbox) {
		return nil, fmt.Errorf("%s: sandbox %q: use host, podman or docker", name, c.Sandbox)
	}
	if c.CPUs < 0 || c.MaxPerArray < 0 || c.MaxQueued < 0 {
		return nil, fmt.Errorf("%s: cpus, max_running_per_array and max_queued are not negative", name)
	}
	return c, nil
}

// Defaults of rows on a cluster.
const (
	slurmCPUs   = 8
	slurmQueued = 1000
	slurmTasks  = 500 // in one array
)

// useSlurm makes the options those of a build on a cluster. f.runner becomes what rows are built in on the nodes.
func (a *app) useSlurm(ctx context.Context, cmd *cobra.Command, f *buildFlags) (build.Options, error) {
	config, err := readSlurmConfig(f.slurmConfig)
	if err != nil {
		return build.Options{}, err
	}
	f.runner = cmp.Or(config.Sandbox, "host")
	f.cacheRemote = cmp.Or(f.cacheRemote, config.CacheRemote)
	opts, err := a.buildOptions(ctx, f)
	if err != nil {
		return opts, err
	}
	env := os.Environ()
	site, err := slurm.ReadSite(ctx, config.Partition, env)
	if err != nil {
		return opts, fmt.Errorf("ask Slurm about the cluster: %w", err)
	}
	// What one row may use: kiln's flags, then the site's settings, then what a node has.
	opts.CPU = cmp.Or(f.cpus, config.CPUs, min(slurmCPUs, max(1, site.CPUs)))
	if opts.MemoryBytes == 0 && config.Memory != "" {
		if opts.MemoryBytes, err = units.ParseBytes(config.Memory); err != nil {
			return opts, fmt.Errorf("memory of the Slurm settings: %w", err)
		}
	}
	if opts.MemoryBytes == 0 && site.MemoryBytes > 0 {
		opts.MemoryBytes = site.MemoryBytes / 10 * 9
	}
	opts.Jobs = cmp.Or(f.jobs, config.MaxQueued, slurmQueued)
	opts.Scratch = config.Scratch
	state, err := filepath.Abs(f.stateDir())
	if err != nil {
		return opts, err
	}
	if err := os.MkdirAll(state, 0o777); err != nil {
		return opts, err
	}
	owner, err := build.OwnerID(state)
	if err != nil {
		return opts, err
	}
	programs := filepath.Join(state, "bin")
	program, err := shareProgram(opts.Kiln, programs)
	if err != nil {
		return opts, fmt.Errorf("show kiln to the nodes: %w", err)
	}
	limit := cmp.Or(time.Duration(config.TimeLimit), site.TimeLimit)
	runner, err := slurm.New(slurm.Options{
		Dir: filepath.Join(state, "slurm"), Owner: ownerName(owner), Worker: workerCommand(cmd, program, f, config, opts.Remote.URL), Prefix: config.Prefix, Env: env,
		Programs:  programs,
		Partition: config.Partition, Account: config.Account, QOS: config.QOS, Constraint: config.Constraint, Args: slices.Concat(config.Args, f.slurmArgs),
		MaxPerArray: config.MaxPerArray, MaxTasks: min(cmp.Or(site.MaxArray, slurmTasks), slurmTasks), TimeLimit: limit, Grace: time.Duration(config.Grace), Poll: time.Duration(config.Poll),
		Beat: time.Duration(config.Beat), Log: a.log,
	})
	opts.Cluster = runner
	return opts, err
}

// ownerName has only what the name of a job may have.
func ownerName(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:6])
}

// shareProgram copies kiln to where the nodes see it: it may be installed on the login node alone, and it may be replaced while jobs wait.
func shareProgram(program, dir string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	h := sha256.New()
	if _, err := io.Copy(h, from); err != nil {
		return "", err
	}
	to := filepath.Join(dir, "kiln-"+hex.EncodeToString(h.Sum(nil)[:8]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	f, err := fsx.Create(to)
	if err != nil {
		return "", err
	}
	defer f.Abort() //nolint:errcheck // nothing to do after Commit
	if _, err := io.Copy(f, from); err != nil {
		return "", err
	}
	if err := f.Commit(); err != nil {
		return "", err
	}
	return to, os.Chmod(to, 0o777)
}

// workerCommand is what a job runs: kiln with the flags of this build, as far as they are about a single row.
func workerCommand(cmd *cobra.Command, program string, f *buildFlags, config *slurmConfig, remote string) []string {
	argv := []string{program, workerName, "--runner=" + f.runner}
	if config.Scratch != "" {
		argv = append(argv, "--scratch="+config.Scratch)
	}
	if config.Beat > 0 {
		argv = append(argv, "--beat="+time.Duration(config.Beat).String())
	}
	if remote != "" {
		argv = append(argv, "--cache-remote="+remote)
	}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "runner", "slurm-config", "slurm-arg", "json", "jobs", "cpus", "memory", "cache-remote", "directory", "fail-fast":
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				argv = append(argv, "--"+flag.Name+"="+v)
			}
			return
		}
		argv = append(argv, "--"+flag.Name+"="+flag.Value.String())
	})
	return argv
}

const workerName = "slurm-worker"

// slurmWorkerCommand is what jobs run. It is not for people.
func (a *app) slurmWorkerCommand() *cobra.Command {
	var flags buildFlags
	var scratch string
	var beat time.Duration
	cmd := &cobra.Command{
		Use:     workerName + " BATCH",
		Short:   "Build the row of one task of a Slurm array",
		Example: "  kiln " + workerName + " .kiln/slurm/abc",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := slurmSignals(cmd.Context())
			defer stop()
			opts, err := a.buildOptions(ctx, &flags)
			if err != nil {
				return err
			}
			opts.Scratch = scratch
			if opts.CPU, err = strconv.Atoi(cmp.Or(os.Getenv("SLURM_CPUS_PER_TASK"), "1")); err != nil {
				return fmt.Errorf("SLURM_CPUS_PER_TASK: %w", err)
			}
			if mib, err := strconv.ParseInt(os.Getenv("SLURM_MEM_PER_NODE"), 10, 64); err == nil {
				opts.MemoryBytes = mib << 20
			}
			return slurm.Work(ctx, slurm.WorkOptions{
				Batch: args[0], Job: os.Getenv("SLURM_ARRAY_JOB_ID"), Task: os.Getenv("SLURM_ARRAY_TASK_ID"), Restart: os.Getenv("SLURM_RESTART_COUNT"),
				Runner: build.RowRunner(opts), Beat: beat,
			})
		},
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&flags.rebuild, "rebuild", false, "build also what is there already")
	cmd.Flags().StringVar(&scratch, "scratch", "", "a `folder` of the node's own for work folders and caches")
	cmd.Flags().DurationVar(&beat, "beat", 0, "how often to say that the worker is alive")
	return cmd
}

// slurmSignals ends the context with what a signal means in a job.
func slurmSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, slices.Concat(slurmLimitSignals, []os.Signal{syscall.SIGTERM, os.Interrupt})...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range signals {
			if slices.Contains(slurmLimitSignals, s) {
				cancel(slurm.ErrTimeLimit)
			} else {
				cancel(slurm.ErrStopped)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		<-done
		cancel(nil)
	}
}

// compileLine says how much came from the cache, and from where.
func compileLine(result *build.Result) string {
	var calls, hits, remote int
	for _, r := range result.Rows {
		if r.Record != nil && r.Record.Compiles != nil && r.Status == engine.StatusDone {
			calls, hits, remote = calls+r.Record.Compiles.Calls, hits+r.Record.Compiles.Hits, remote+r.Record.Compiles.RemoteHits
		}
	}
	if calls == 0 {
		return ""
	}
	line := fmt.Sprintf("compiler calls: %d, of which %d came from the cache", calls, hits)
	if remote > 0 {
		line += fmt.Sprintf(", %d of them from other machines", remote)
	}
	return line
}
