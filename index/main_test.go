package index_test

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write golden files")

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("KILN_TEST_PUBLISHER") != "" {
		os.Exit(publisher())
	}
	os.Exit(m.Run())
}
