// Package kilntest has what tests of many packages need.
package kilntest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Required reports whether KILN_REQUIRE, a comma list, names a tool: then a test that needs it must not be skipped.
func Required(tool string) bool {
	return slices.Contains(strings.Split(os.Getenv("KILN_REQUIRE"), ","), tool)
}

// Lacking ends a test that needs a tool which is not there. It is skipped, or fails if the tool is required.
func Lacking(t testing.TB, tool, reason string, args ...any) {
	t.Helper()
	if Required(tool) {
		t.Fatalf(reason+" (KILN_REQUIRE has "+tool+")", args...)
	}
	t.Skipf(reason, args...)
}
