package index_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv("KILN_TEST_PUBLISHER") != "" {
		os.Exit(publisher())
	}
	os.Exit(m.Run())
}
