// Package units writes sizes, counts and times for people, and reads sizes that people wrote.
package units

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Bytes writes a size with a binary unit: 1.4 GiB.
func Bytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1023.95 && u < len(units)-1 {
		v /= 1024
		u++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[u])
}

// SizePattern matches what [ParseBytes] reads, but for its range.
const SizePattern = `^[0-9]+(\.[0-9]+)? *(B|[kKMGT]B|[KMGT]iB)$`

var sizePattern = regexp.MustCompile(SizePattern)

// ParseBytes reads a number of bytes with its unit: B, kB, MB, GB, TB (powers of 1000) or KiB,
// MiB, GiB, TiB (powers of 1024). It is at least 1 and at most 2^53.
func ParseBytes(s string) (int64, error) {
	number := strings.TrimRight(s, "BKkMGTi ")
	factor := map[string]float64{
		"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}[strings.TrimSpace(s[len(number):])]
	v, err := strconv.ParseFloat(number, 64)
	if !sizePattern.MatchString(s) || err != nil || v*factor < 1 || v*factor > 1<<53 {
		return 0, fmt.Errorf("size %q: want a number and a unit such as GiB", s)
	}
	return int64(v * factor), nil
}

// Count writes a number with its noun: 1 row, 88 rows, 4,089 calls.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Number(n) + " " + noun + "s"
}

// Number writes a number with commas between thousands.
func Number(n int) string {
	s := strconv.Itoa(n)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Duration writes a time span in its two largest units: 2h 5m, 48s, 320ms.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd %dh", int(d.Hours())/24, int(d.Hours())%24)
}
