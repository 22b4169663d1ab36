package engine_test

import (
	"context"
	"fmt"
	"os"

	"github.com/kiln-build/kiln/engine"
)

// Two jobs, of which one needs the other, run, and are not run again.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	jobs := []engine.Job{
		{ID: "link", Digest: "sha256:1f", Needs: []string{"compile"}},
		{ID: "compile", Digest: "sha256:9a", Resources: engine.Resources{CPU: 2, MemoryBytes: 4 << 30}},
	}
	runner := engine.Local(func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		fmt.Println("running", a.Job.ID)
		return engine.Result{PeakMemoryBytes: 3 << 30}, nil
	})
	for range 2 {
		report, err := engine.Run(context.Background(), jobs, engine.Options{Dir: dir, Runner: runner})
		if err != nil {
			panic(err)
		}
		for _, j := range report.Jobs {
			fmt.Println(j.ID, j.Status)
		}
	}
	// Output:
	// running compile
	// running link
	// link done
	// compile done
	// link reused
	// compile reused
}
