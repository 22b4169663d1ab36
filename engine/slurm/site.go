package slurm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Site is what a cluster says of itself.
type Site struct {
	// Partition is the one that was asked for, or the default.
	Partition string
	// TimeLimit is the longest that a job may run; zero means without limit.
	TimeLimit time.Duration
	// CPUs and MemoryBytes are those of the partition's largest node, not necessarily of the same
	// one. Nodes is how many there are.
	CPUs        int
	MemoryBytes int64
	Nodes       int
	// MaxArray is how many tasks an array may have.
	MaxArray int
	// KillWait is the time between SIGTERM and SIGKILL.
	KillWait time.Duration
}

// ReadSite asks scontrol about the cluster. An empty partition means the default one.
func ReadSite(ctx context.Context, partition string, env []string) (*Site, error) {
	return readSite(ctx, partition, func(ctx context.Context, stdout io.Writer, argv ...string) error {
		return command(ctx, env, stdout, argv)
	})
}

func readSite(ctx context.Context, partition string, command func(context.Context, io.Writer, ...string) error) (*Site, error) {
	s := &Site{}
	var out bytes.Buffer
	if err := command(ctx, &out, "scontrol", "--oneliner", "show", "partition"); err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(out.String()) {
		f := keyValues(line)
		name := f["PartitionName"]
		if name == "" {
			continue
		}
		names = append(names, name)
		if name != partition && (partition != "" || f["Default"] != "YES") {
			continue
		}
		s.Partition = name
		limit, err := parseTime(f["MaxTime"])
		if err != nil {
			return nil, fmt.Errorf("partition %s: MaxTime: %w", name, err)
		}
		s.TimeLimit = limit
	}
	if s.Partition == "" {
		if partition == "" {
			return nil, fmt.Errorf("no partition is the default; name one of %s", strings.Join(names, ", "))
		}
		return nil, fmt.Errorf("there is no partition %s; there is %s", partition, strings.Join(names, ", "))
	}
	out.Reset()
	if err := command(ctx, &out, "scontrol", "--oneliner", "show", "node"); err != nil {
		return nil, err
	}
	for line := range strings.Lines(out.String()) {
		f := keyValues(line)
		in := false
		for p := range strings.SplitSeq(f["Partitions"], ",") {
			in = in || p == s.Partition
		}
		if !in {
			continue
		}
		s.Nodes++
		cpus, _ := strconv.Atoi(f["CPUTot"])
		memory, _ := strconv.ParseInt(f["RealMemory"], 10, 64)
		s.CPUs, s.MemoryBytes = max(s.CPUs, cpus), max(s.MemoryBytes, memory<<20)
	}
	out.Reset()
	if err := command(ctx, &out, "scontrol", "show", "config"); err != nil {
		return nil, err
	}
	for line := range strings.Lines(out.String()) {
		name, value, _ := strings.Cut(line, "=")
		value, _, _ = strings.Cut(strings.TrimSpace(value), " ")
		switch n, _ := strconv.Atoi(value); strings.TrimSpace(name) {
		case "MaxArraySize":
			s.MaxArray = n
		case "KillWait":
			s.KillWait = time.Duration(n) * time.Second
		}
	}
	return s, nil
}

// keyValues reads a line such as "JobId=3 JobState=FAILED". Values with spaces lose what is behind
// the first.
func keyValues(line string) map[string]string {
	out := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			if _, seen := out[key]; !seen {
				out[key] = value
			}
		}
	}
	return out
}

// parseTime reads a time limit: minutes, minutes:seconds, hours:minutes:seconds, or with days and a
// dash before.
func parseTime(s string) (time.Duration, error) {
	switch s {
	case "", "UNLIMITED", "INFINITE", "NONE", "n/a", "N/A":
		return 0, nil
	}
	days, rest, hasDays := strings.Cut(s, "-")
	if !hasDays {
		days, rest = "0", s
	}
	parts := strings.Split(rest, ":")
	numbers := make([]int, len(parts)+1)
	for i, p := range append(parts, days) {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || n > 1e6 {
			return 0, fmt.Errorf("%q is not a time", s)
		}
		numbers[i] = n
	}
	d := time.Duration(numbers[len(parts)]) * 24 * time.Hour
	units := []time.Duration{time.Hour, time.Minute, time.Second}
	if !hasDays {
		switch len(parts) {
		case 1:
			units = units[1:]
		case 2:
			units = units[1:]
		}
	}
	if len(parts) > len(units) {
		return 0, fmt.Errorf("%q is not a time", s)
	}
	for i := range parts {
		d += time.Duration(numbers[i]) * units[i]
	}
	return d, nil
}
