package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"
)

// baseline has the times of other kernels on a card, as one program measured them.
type baseline struct {
	Device  string `json:"device"`
	Made    string `json:"made"`
	Results []struct {
		K      int     `json:"k"`
		N      int     `json:"n"`
		M      int     `json:"m"`
		Method string  `json:"method"`
		Micros float64 `json:"us"`
	} `json:"results"`
}

// The methods of a baseline, by the format of the matrix. Dense weights are [K, N], as those of
// RunBLAS.
const (
	denseMethod  = "fp16_kn"
	marlinMethod = "marlin_g128"
)

var exllamaMethods = map[string]string{"exl2-4": "exl2_4.0", "gptq": "gptq_g128"}

// maxDrift is how far the dense product may be from that of the baseline for times of both to be
// compared: cards of one kind differ, and so does one card from day to day.
const maxDrift = 0.05

func (b *baseline) micros(k, n, m int, method string) (float64, bool) {
	for _, r := range b.Results {
		if r.K == k && r.N == n && r.M == m && r.Method == method {
			return r.Micros, true
		}
	}
	return 0, false
}

// comparison is a line of the table. Ratios are times of the others over kiln's, 0 if there is
// none.
type comparison struct {
	K         int     `json:"k"`
	N         int     `json:"n"`
	M         int     `json:"m"`
	Format    string  `json:"format"`
	Micros    float64 `json:"us"`
	Drift     float64 `json:"dense_drift"` // of the dense product from the baseline's, as a fraction
	Valid     bool    `json:"comparable"`
	Exllamav2 float64 `json:"exllamav2_ratio,omitempty"`
	Goal      float64 `json:"goal,omitempty"`
	Marlin    float64 `json:"marlin_ratio,omitempty"`
}

// goal is the least ratio to exllamav2 that is wanted, 0 where none is set.
func goal(k, n, m int) float64 {
	switch {
	case m == 1:
		return 1.5
	case m == 8:
		return 3
	case (m == 16 || m == 32) && k == 4096 && n == 4096:
		return 5
	case m == 16 || m == 32:
		return 8
	case m == 64 || m == 128:
		return 2.5
	case m == 256:
		return 1.6
	case m >= 1024:
		return 1
	}
	return 0
}

// met reports whether the line reaches what is wanted of it: its goal, and for GPTQ with few rows
// not to be slower than Marlin.
func (c comparison) met() bool {
	if c.Format == "gptq" {
		return c.M > 64 || c.Marlin == 0 || c.Marlin >= 1
	}
	return c.Exllamav2 == 0 || c.Exllamav2 >= c.Goal
}

// compare puts the lines of a report beside a baseline.
func compare(report benchReport, b baseline) []comparison {
	var out []comparison
	for _, r := range report.Measurements {
		c := comparison{K: r.K, N: r.N, M: r.M, Format: r.Format, Micros: r.Kiln.Seconds * 1e6}
		if dense, ok := b.micros(r.K, r.N, r.M, denseMethod); ok && r.BLAS != nil {
			c.Drift = r.BLAS.Seconds*1e6/dense - 1
			c.Valid = math.Abs(c.Drift) <= maxDrift
		}
		if v, ok := b.micros(r.K, r.N, r.M, exllamaMethods[r.Format]); ok {
			c.Exllamav2 = v / c.Micros
		}
		if r.Format == "gptq" {
			if v, ok := b.micros(r.K, r.N, r.M, marlinMethod); ok {
				c.Marlin = v / c.Micros
			}
		} else if c.Exllamav2 != 0 {
			c.Goal = goal(r.K, r.N, r.M)
		}
		if c.Exllamav2 != 0 || c.Marlin != 0 {
			out = append(out, c)
		}
	}
	return out
}

func printComparisons(out io.Writer, lines []comparison) {
	fmt.Fprintf(out, "%5s %5s %-8s %5s %9s %10s %5s %7s %7s\n", "K", "N", "format", "m", "µs", "exllamav2", "goal", "Marlin", "drift")
	number := func(width int, v float64) string {
		if v == 0 {
			return fmt.Sprintf("%*s", width, "")
		}
		return fmt.Sprintf("%*.2f", width, v)
	}
	missed, invalid := 0, 0
	for _, c := range lines {
		note := ""
		if !c.met() {
			note = "  missed"
			missed++
		}
		if !c.Valid {
			note += "  not comparable"
			invalid++
		}
		fmt.Fprintf(out, "%5d %5d %-8s %5d %9.2f %s %s %s %6.1f%%%s\n", c.K, c.N, c.Format, c.M, c.Micros,
			number(10, c.Exllamav2), number(5, c.Goal), number(7, c.Marlin), 100*c.Drift, note)
	}
	fmt.Fprintf(out, "%d lines: %d miss what is wanted, %d are not comparable (dense product over %.0f %% from the baseline's, or not measured)\n",
		len(lines), missed, invalid, 100*maxDrift)
}

func readJSON(path string, to any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func newCompare() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "compare REPORT BASELINE",
		Short: "Put a report of bench --json beside the times of other kernels",
		Long: `Compare reads a report of bench --json, with cuBLAS, and a file with times of other kernels on the same kind of card, and
prints how much faster kiln is. A line counts only where the dense product took about as long in both, within 5 %.
It needs no GPU.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			var report benchReport
			var b baseline
			if err := errors.Join(readJSON(args[0], &report), readJSON(args[1], &b)); err != nil {
				return err
			}
			if report.Device.Name != b.Device {
				return fmt.Errorf("compare: the report is of a card %q, the baseline of %q", report.Device.Name, b.Device)
			}
			lines := compare(report, b)
			if len(lines) == 0 {
				return errors.New("compare: the two have no product in common")
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), lines)
			}
			printComparisons(c.OutOrStdout(), lines)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
