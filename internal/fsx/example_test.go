package fsx_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kiln-build/kiln/internal/fsx"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// One writer at a time.
	lock, err := fsx.Lock(context.Background(), filepath.Join(dir, "lock"))
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock() //nolint:errcheck // The process ends here.

	// A folder that appears complete or not at all.
	final := filepath.Join(dir, "model")
	work, err := fsx.MkdirTemp(final)
	if err != nil {
		log.Fatal(err)
	}
	if err := fsx.WriteFile(filepath.Join(work, "config.json"), []byte("{}\n"), 0o666); err != nil {
		log.Fatal(err)
	}
	if err := fsx.RenameDir(work, final, fsx.RenameDirOptions{}); err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(final, "config.json"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", text)
	// Output: {}
}
