package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kiln-build/kiln/engine"
)

// clusterRows hands rows to other machines, but for those that no machine like this one can build.
type clusterRows struct {
	engine.Keeper
	opts    *Options
	recipes map[string]*Recipe
}

// Run implements [engine.Runner].
func (c *clusterRows) Run(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
	if reason := c.opts.foreign(&c.recipes[try.Job.ID].Row); reason != "" {
		return engine.Result{}, engine.Skip(reason)
	}
	return c.Keeper.Run(ctx, try)
}

// OwnerID returns the name that a state folder has for what it leaves elsewhere. It is made if it is missing.
func OwnerID(stateDir string) (string, error) {
	o := Options{StateDir: stateDir}
	err := o.ownerID()
	return o.owner, err
}

// RowRunner makes attempts at rows that another process planned: the recipe is the job's payload. CPU and MemoryBytes are
// what this process may use. It is for the workers of [Options.Cluster].
func RowRunner(opts Options) engine.Runner {
	return engine.Local(func(ctx context.Context, try *engine.Attempt) (result engine.Result, err error) {
		recipe := &Recipe{}
		if err := json.Unmarshal(try.Job.Payload, recipe); err != nil {
			return engine.Result{}, fmt.Errorf("read the recipe: %w", err)
		}
		if err := opts.fill(); err != nil {
			return engine.Result{}, err
		}
		if err := opts.ownerID(); err != nil {
			return engine.Result{}, err
		}
		// Other rows are built on this machine too. What is swept is only what an earlier attempt at this row left here.
		sum := sha256.Sum256([]byte(try.Job.ID))
		opts.owner += "." + hex.EncodeToString(sum[:6])
		if _, err := opts.Sandboxes.Sweep(ctx, opts.owner); err != nil {
			return engine.Result{}, engine.Fail(engine.CauseLost, err)
		}
		if err := opts.startSharing(ctx); err != nil {
			return engine.Result{}, fmt.Errorf("share compiles: %w", err)
		}
		defer func() { err = errors.Join(err, opts.stopSharing()) }()
		return runAttempt(ctx, &opts, recipe, try)
	})
}

// A record that another machine wrote may be seen late: a shared folder remembers for a while that a file was not there.
const (
	recordPatience = 90 * time.Second
	recordPause    = 2 * time.Second
)

// finishedRecord reads the record of a row that is finished.
func (o *Options) finishedRecord(ctx context.Context, row string) (*Record, error) {
	for deadline := time.Now().Add(recordPatience); ; {
		record, err := readRecord(o.recordPath(row))
		if o.Cluster == nil || !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return record, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(recordPause):
		}
	}
}
