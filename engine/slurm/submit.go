package slurm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
)

// submit makes arrays of the attempts that wait, not more often than Poll, and tries again what did
// not work.
func (r *Runner) submit(ctx context.Context) {
	now := time.Now()
	r.mu.Lock()
	var ready []*batch
	for _, b := range r.batches {
		if b.job == 0 && !b.unsure && b.open > 0 && !b.retryAt.After(now) {
			ready = append(ready, b)
		}
	}
	var waiting []*task
	if len(r.waiting) > 0 && now.Sub(r.since) >= r.opts.Window && now.Sub(r.last) >= r.opts.Poll {
		waiting, r.waiting = r.waiting, nil
		waiting = slices.DeleteFunc(waiting, func(t *task) bool {
			if t.stop != nil {
				r.finish(t, engine.Result{}, t.stop)
				return true
			}
			return false
		})
		r.last = now
	}
	r.mu.Unlock()
	// They came from goroutines of their own, so the engine's order is lost.
	slices.SortFunc(waiting, func(a, b *task) int {
		return cmp.Or(cmp.Compare(b.a.Expect, a.a.Expect), cmp.Compare(b.request.MiB, a.request.MiB), strings.Compare(a.a.Job.ID, b.a.Job.ID))
	})
	for _, tasks := range group(waiting, r.opts.MaxTasks) {
		b, err := r.newBatch(tasks)
		r.mu.Lock()
		if err != nil {
			for _, t := range tasks {
				r.finish(t, engine.Result{}, err)
			}
		} else {
			r.batches[b.name] = b
			ready = append(ready, b)
		}
		r.mu.Unlock()
	}
	for _, b := range ready {
		r.sbatch(ctx, b)
	}
}

// group puts tasks that ask for the same together, in the order of the first of each.
func group(tasks []*task, most int) [][]*task {
	var groups [][]*task
	open := map[request]int{}
	for _, t := range tasks {
		i, ok := open[t.request]
		if !ok || len(groups[i]) == most {
			i = len(groups)
			open[t.request] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], t)
	}
	return groups
}

// newBatch writes the folder of an array.
func (r *Runner) newBatch(tasks []*task) (*batch, error) {
	name := strings.ToLower(rand.Text()[:10])
	b := &batch{
		Format: batchFormat, Request: tasks[0].request, name: name, dir: filepath.Join(r.opts.Dir, name), jobName: r.prefix + name, open: len(tasks), tasks: tasks,
	}
	for _, t := range tasks {
		b.Attempts = append(b.Attempts, t.a.Dir)
	}
	if err := os.MkdirAll(b.dir, 0o777); err != nil {
		return nil, fmt.Errorf("make a batch: %w", err)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	// USR1 must not end the shell in the moment before the worker is there.
	script := "#!/bin/sh\ntrap '' USR1\nexec " + quote(slices.Concat(r.opts.Prefix, r.opts.Worker, []string{b.dir})) + "\n"
	if err := os.WriteFile(filepath.Join(b.dir, scriptFile), []byte(script), 0o777); err != nil {
		return nil, fmt.Errorf("make a batch: %w", err)
	}
	if err := fsx.WriteFile(filepath.Join(b.dir, batchFile), text, 0o666); err != nil {
		return nil, fmt.Errorf("make a batch: %w", err)
	}
	for i, t := range tasks {
		t.batch, t.index = b, i
	}
	return b, nil
}

// sbatchArgs is the whole command.
func (r *Runner) sbatchArgs(b *batch) []string {
	array := fmt.Sprintf("--array=0-%d", len(b.Attempts)-1)
	if r.opts.MaxPerArray > 0 {
		array += "%" + strconv.Itoa(r.opts.MaxPerArray)
	}
	q := b.Request
	argv := []string{
		"sbatch", "--parsable", "--job-name=" + b.jobName, array, "--nodes=1", "--ntasks=1", "--cpus-per-task=" + strconv.Itoa(q.CPU),
		"--requeue", "--open-mode=append", "--output=" + filepath.Join(b.dir, "out.%a"), "--chdir=" + r.opts.WorkDir,
	}
	if q.MiB > 0 {
		argv = append(argv, fmt.Sprintf("--mem=%dM", q.MiB))
	}
	if q.Minutes > 0 {
		argv = append(argv, "--time="+strconv.Itoa(q.Minutes), fmt.Sprintf("--signal=B:USR1@%d", max(1, int(q.Grace.Seconds()))))
	}
	for _, option := range [][2]string{
		{"--partition=", r.opts.Partition}, {"--account=", r.opts.Account}, {"--qos=", r.opts.QOS}, {"--constraint=", r.opts.Constraint},
	} {
		if option[1] != "" {
			argv = append(argv, option[0]+option[1])
		}
	}
	return append(append(argv, r.opts.Args...), filepath.Join(b.dir, scriptFile))
}

// sbatch submits a batch. When it fails in a way that may be over soon, it is not known whether it
// worked: the next answer of squeue tells.
func (r *Runner) sbatch(ctx context.Context, b *batch) {
	var out bytes.Buffer
	var err error
	job := 0
	if b.tries > 0 {
		// A controller that was slow may have taken it since.
		var q *queue
		if q, err = r.queue(ctx); err == nil {
			job = q.byName(b.jobName)
		}
	}
	if err == nil && job == 0 {
		err = r.opts.Command(ctx, &out, r.sbatchArgs(b)...)
	}
	if err == nil && job == 0 {
		// The number, and behind a semicolon the cluster. Site scripts may print before it.
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		id, _, _ := strings.Cut(lines[len(lines)-1], ";")
		if job, err = strconv.Atoi(strings.TrimSpace(id)); err != nil {
			err = fmt.Errorf("sbatch printed %.200q, want the number of a job", out.String())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		b.job = job
		if err := b.saveJob(); err != nil {
			r.opts.Log.Warn("cannot write down the number of a job; a restart finds it by its name", "job", job, "error", err)
		}
	case transient(err):
		b.unsure = true
		if b.tries++; b.tries == 1 {
			r.opts.Log.Warn("sbatch did not work; it is tried again", "rows", len(b.Attempts), "error", err)
		}
	default:
		for _, t := range slices.Clone(b.tasks) {
			r.finish(t, engine.Result{}, engine.Fail(engine.CauseFault, fmt.Errorf("submit to Slurm: %w", err)))
		}
	}
}

// again lets a batch that squeue does not know be submitted once more, after a pause that grows.
// r.mu is held.
func (r *Runner) again(b *batch) {
	b.retryAt = time.Now().Add(r.opts.Poll << min(b.tries, 4))
	for _, t := range slices.Clone(b.tasks) {
		if t.stop != nil {
			r.finish(t, engine.Result{}, t.stop)
		}
	}
}

// quote makes a line for a shell of words.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
