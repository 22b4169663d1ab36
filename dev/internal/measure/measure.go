// Package measure has what the benchmarks share.
package measure

import (
	"cmp"
	"slices"
)

// Median returns the middle of the values, the upper one of two, and the zero value of none.
func Median[T cmp.Ordered](values []T) T {
	if len(values) == 0 {
		var none T
		return none
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
