package fatbin_test

import (
	"fmt"
	"log"
	"os"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
)

// Which GPUs is this object for?
func Example() {
	f, err := os.Open("testdata/nvcc130.o")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	contents, err := fatbin.Scan(f, info.Size())
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range contents.Entries {
		fmt.Println(e.Kind, e.Target())
	}
	// Output:
	// SASS sm_90a
	// SASS sm_100f
	// PTX compute_120
}
