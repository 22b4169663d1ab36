// Package measure has what the benchmarks share.
package measure

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// Median returns the middle of the values, the upper one of two, and the zero value of none.
func Median[T cmp.Ordered](values []T) T {
	if len(values) == 0 {
		var none T
		return none
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// Processor names the processor of this machine and counts its cores, for the head of a result.
func Processor() string {
	name := runtime.GOARCH
	text, _ := os.ReadFile("/proc/cpuinfo") // on Linux
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			name = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%s, %d cores", name, runtime.NumCPU())
}
