// Package kilntest has what tests of many packages need.
package kilntest

import (
	"archive/zip"
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Required reports whether KILN_REQUIRE, a comma list, names a tool: then a test that needs it must
// not be skipped.
func Required(tool string) bool {
	return slices.Contains(strings.Split(os.Getenv("KILN_REQUIRE"), ","), tool)
}

// Lacking ends a test that needs a tool which is not there. It is skipped, or fails if the tool is
// required.
func Lacking(t testing.TB, tool, reason string, args ...any) {
	t.Helper()
	if Required(tool) {
		t.Fatalf(reason+" (KILN_REQUIRE has "+tool+")", args...)
	}
	t.Skipf(reason, args...)
}

// FreePort returns a port of this machine that was free a moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// WaitForPort waits until a server on this machine answers.
func WaitForPort(t testing.TB, port int, server string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", server, err)
		}
	}
}

// E2E reports whether KILN_E2E, a comma list, names an end-to-end suite.
func E2E(suite string) bool {
	return slices.Contains(strings.Split(os.Getenv("KILN_E2E"), ","), suite)
}

// NeedE2E skips a test unless KILN_E2E names its suite.
func NeedE2E(t testing.TB, suite string) {
	t.Helper()
	if !E2E(suite) {
		t.Skip("KILN_E2E does not name " + suite)
	}
}

// Allocated returns the bytes that f allocates.
func Allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Zip returns an archive of files, by their names in order.
func Zip(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
