package exl2_test

import (
	"context"
	"fmt"

	"github.com/kiln-build/kiln/model/exl2"
)

// The whole job, as "kiln model compile" does it.
func Example() {
	compile := func(ctx context.Context, workDir, out string) error {
		inv, problems := exl2.ReadInventory(ctx, exl2.Options{WorkDir: workDir})
		if err := problems.Err(); err != nil {
			return err
		}
		plan, err := inv.Plan(exl2.PlanOptions{Out: out})
		if err != nil {
			return err
		}
		_, err = exl2.Write(ctx, plan, exl2.WriteOptions{})
		return err
	}

	fmt.Println(compile(context.Background(), "no-such-folder", "out"))
	// Output:
	// no-such-folder/job_new.json: no job here; this is the working directory (-o) of the converter
}
