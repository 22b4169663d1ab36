package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/units"
)

// Defaults of rows on a cluster.
const (
	slurmCPUs   = 8
	slurmQueued = 1000
)

// useSlurm makes the options those of a build on a cluster. f.runner becomes what rows are built in
// on the nodes.
func (a *app) useSlurm(ctx context.Context, cmd *cobra.Command, f *buildFlags) (build.Options, error) {
	config, err := slurm.ReadConfig(cmp.Or(f.slurmConfig, os.Getenv("KILN_SLURM_CONFIG")))
	if err != nil {
		return build.Options{}, err
	}
	f.runner = cmp.Or(config.Sandbox, "host")
	f.cacheRemote = cmp.Or(f.cacheRemote, config.CacheRemote)
	opts, err := a.buildOptions(ctx, f)
	if err != nil {
		return opts, err
	}
	// Jobs get their credentials as they get the rest of the environment. What they have no use for
	// stays here, and so do those of this run from everything else that Slurm is asked.
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
	owner, err := build.OwnerID(state)
	if err != nil {
		return opts, err
	}
	o := config.Options(site)
	o.Dir, o.Programs, o.Owner, o.Env, o.Log = filepath.Join(state, "slurm"), filepath.Join(state, "bin"), slurm.OwnerName(owner), env, a.log
	o.JobEnv = a.jobSecrets()
	program, err := slurm.CopyProgram(opts.Kiln, o.Programs)
	if err != nil {
		return opts, fmt.Errorf("show kiln to the nodes: %w", err)
	}
	o.Worker = workerCommand(cmd, program, f, config, opts.Remote.URL)
	o.Args = slices.Concat(o.Args, f.slurmArgs)
	opts.Cluster, err = slurm.New(o)
	return opts, err
}

// jobSecrets are the variables with credentials that a job needs.
func (a *app) jobSecrets() []string {
	var env []string
	for _, name := range []string{"KILN_CACHE_PASSWORD", "KILN_CACHE_TOKEN"} {
		if v := a.secrets.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	if v := a.secrets.Handover(); v != "" {
		env = append(env, secret.HandoverEnv+"="+v)
	}
	return env
}

// workerCommand is what a job runs: kiln with the flags of this build, as far as they are about a
// single row.
func workerCommand(cmd *cobra.Command, program string, f *buildFlags, config *slurm.Config, remote string) []string {
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
			ctx, stop := slurm.Signals(cmd.Context())
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
