package engine_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/kiln-build/kiln/internal/run"
)

// helperEnv makes the test binary play a part in another process.
const helperEnv = "KILN_ENGINE_HELPER"

func TestMain(m *testing.M) {
	run.Main()
	if name := os.Getenv(helperEnv); name != "" {
		if err := helpers[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var helpers = map[string]func() error{}
