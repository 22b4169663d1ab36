package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/matrix"
)

// clusterRows hands rows to other machines, but for those that no machine like this one can build.
type clusterRows struct {
	engine.Keeper
	builder *Builder
	recipes map[string]*record.Recipe
}

// Run implements [engine.Runner].
func (c *clusterRows) Run(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
	if reason := c.builder.foreign(&c.recipes[try.Job.ID].Row); reason != "" {
		return engine.Result{}, engine.Skip(reason)
	}
	result, err := c.Keeper.Run(ctx, try)
	return result, c.explained(try, err)
}

// Resume implements [engine.Keeper].
func (c *clusterRows) Resume(ctx context.Context, try *engine.Attempt) (engine.Result, error) {
	result, err := c.Keeper.Resume(ctx, try)
	return result, c.explained(try, err)
}

// failureName is the file in the folder of an attempt in which a worker leaves its [RowError]: of
// errors only text and cause come back through an engine.
const failureName = "failure.json"

// saveFailure leaves the explanation of an error for [clusterRows.explained].
func saveFailure(try *engine.Attempt, row *matrix.Row, err error) error {
	e, ok := errors.AsType[*RowError](err)
	if !ok {
		return nil
	}
	return record.Failure{
		Row: e.Row, Digest: row.Digest, Reason: e.Error(), Stage: e.Stage, Diagnosis: &e.Diagnosis, Error: e.Err.Error(), Log: e.Log,
	}.Write(filepath.Join(try.Dir, failureName))
}

// explained returns the error of an attempt as its worker saw it. The file may be that of an
// earlier start of the same attempt, which Slurm put back: it counts if it says the same.
func (c *clusterRows) explained(try *engine.Attempt, err error) error {
	if err == nil {
		return nil
	}
	f, bad := record.ReadFailure(filepath.Join(try.Dir, failureName), &c.recipes[try.Job.ID].Row)
	if bad != nil || f == nil || f.Diagnosis == nil || f.Reason != err.Error() {
		return err
	}
	return engine.Fail(engine.CauseOf(err), &RowError{Row: f.Row, Stage: f.Stage, Diagnosis: *f.Diagnosis, Log: f.Log, Err: errors.New(f.Error)})
}

// RowRunner makes attempts at rows that another process planned: the recipe is the job's payload.
// CPU and MemoryBytes are what this process may use. It is for the workers of [Options.Cluster].
func RowRunner(opts Options) engine.Runner {
	return engine.Local(func(ctx context.Context, try *engine.Attempt) (result engine.Result, err error) {
		recipe := &record.Recipe{}
		if err := json.Unmarshal(try.Job.Payload, recipe); err != nil {
			return engine.Result{}, fmt.Errorf("read the recipe: %w", err)
		}
		b, err := New(opts)
		if err != nil {
			return engine.Result{}, err
		}
		if err := b.ownerID(); err != nil {
			return engine.Result{}, err
		}
		// Other rows are built on this machine too. What is swept is only what an earlier attempt
		// at this row left here.
		sum := sha256.Sum256([]byte(try.Job.ID))
		b.owner += "." + hex.EncodeToString(sum[:6])
		if _, err := b.Sandboxes.Sweep(ctx, b.owner); err != nil {
			return engine.Result{}, engine.Fail(engine.CauseLost, err)
		}
		if b.share, err = b.startSharing(ctx); err != nil {
			return engine.Result{}, err
		}
		defer func() { err = errors.Join(err, b.share.Close()) }()
		result, err = b.attempt(ctx, recipe, try)
		return result, errors.Join(err, saveFailure(try, &recipe.Row, err))
	})
}

// A record that another machine wrote may be seen late: a shared folder remembers for a while that
// a file was not there.
const (
	recordPatience = 90 * time.Second
	recordPause    = 2 * time.Second
)

// finishedRecord reads the record of a row that is finished.
func (b *Builder) finishedRecord(ctx context.Context, row string) (*record.Record, error) {
	for deadline := time.Now().Add(recordPatience); ; {
		done, err := record.Read(b.DistDir, row)
		if b.Cluster == nil || !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return done, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(recordPause):
		}
	}
}
