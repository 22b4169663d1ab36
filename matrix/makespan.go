package matrix

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Cluster is a number of equal machines.
type Cluster struct {
	Nodes int
	// CPUs and MemoryBytes are those of one node; zero memory means that it is not looked at.
	CPUs        int
	MemoryBytes int64
	// RowCPUs is what a row uses whose settings do not say it; zero means 8, or all of a node that has fewer.
	RowCPUs int
}

const defaultRowCPUs = 8

// Makespan is how long the rows of a plan take on a cluster, from what earlier builds measured. It is an estimate of work, not a promise: times are
// those of the machine that measured them; waiting in queues, downloads of images, and compiles that rows share are not in it.
type Makespan struct {
	Cluster Cluster
	// Rows is how many there are, Measured how many of them were built before, and Guessed how many count
	// with the mean of rows like them. The others count with nothing.
	Rows, Measured, Guessed int
	// TooLarge is how many rows need more than a node has. They count as using a whole node.
	TooLarge int
	// Work is the bound that the work sets: processor time of all rows over all processors. Memory is the same for memory. Path is the
	// longest row: rows do not wait for each other, so it is the critical path. No schedule is shorter than the largest.
	Work, Memory, Path time.Duration
	// Longest is the time of a schedule that starts the longest rows first, wherever they fit.
	Longest time.Duration
}

// Bound is what no schedule can beat.
func (m *Makespan) Bound() time.Duration { return max(m.Work, m.Memory, m.Path) }

// Makespan estimates how long a plan takes on a cluster. A nil history knows nothing.
func (p *Plan) Makespan(h *History, c Cluster) Makespan {
	m := Makespan{Cluster: c, Rows: len(p.Rows)}
	if h == nil || c.Nodes < 1 || c.CPUs < 1 {
		return m
	}
	means := h.means(p.Rows)
	var jobs []clusterRow
	var work, memory float64
	for i := range p.Rows {
		r := &p.Rows[i]
		measured, known := h.Rows[r.ID]
		if known {
			m.Measured++
		} else {
			for _, key := range meanKeys(r) {
				if !known {
					measured, known = means[key]
				}
			}
			if !known {
				continue
			}
			m.Guessed++
		}
		settings, _ := p.Settings(r.ID)
		row := clusterRow{
			wall: time.Duration(measured.Seconds * float64(time.Second)), memory: measured.PeakMemoryBytes + measured.PeakMemoryBytes/5,
			cpus: cmp.Or(settings.Resources.Jobs, c.RowCPUs, min(defaultRowCPUs, c.CPUs)),
		}
		if row.cpus > c.CPUs || c.MemoryBytes > 0 && row.memory > c.MemoryBytes {
			m.TooLarge++
		}
		row.cpus = min(row.cpus, c.CPUs)
		if c.MemoryBytes == 0 {
			row.memory = 0
		}
		row.memory = min(row.memory, c.MemoryBytes)
		work += row.wall.Seconds() * float64(row.cpus)
		memory += row.wall.Seconds() * float64(row.memory)
		m.Path = max(m.Path, row.wall)
		jobs = append(jobs, row)
	}
	m.Work = time.Duration(work / float64(c.Nodes*c.CPUs) * float64(time.Second))
	if c.MemoryBytes > 0 {
		m.Memory = time.Duration(memory / (float64(c.Nodes) * float64(c.MemoryBytes)) * float64(time.Second))
	}
	m.Longest = longestFirst(jobs, c)
	return m
}

type clusterRow struct {
	wall   time.Duration
	cpus   int
	memory int64
}

// longestFirst is the makespan of the usual rule: whenever something ends, the longest row that fits starts.
func longestFirst(rows []clusterRow, c Cluster) time.Duration {
	slices.SortStableFunc(rows, func(a, b clusterRow) int { return cmp.Compare(b.wall, a.wall) })
	type running struct {
		end    time.Duration
		node   int
		cpus   int
		memory int64
	}
	type free struct {
		cpus   int
		memory int64
	}
	nodes := make([]free, c.Nodes)
	for i := range nodes {
		nodes[i] = free{c.CPUs, c.MemoryBytes}
	}
	var active []running // by end
	var now time.Duration
	for len(rows) > 0 || len(active) > 0 {
		// Rows that ask for the same do not fit either when one of them did not.
		refused := map[[2]int64]bool{}
		rows = slices.DeleteFunc(rows, func(r clusterRow) bool {
			key := [2]int64{int64(r.cpus), r.memory}
			if refused[key] {
				return false
			}
			n := slices.IndexFunc(nodes, func(f free) bool { return f.cpus >= r.cpus && f.memory >= r.memory })
			if n < 0 {
				refused[key] = true
				return false
			}
			nodes[n].cpus -= r.cpus
			nodes[n].memory -= r.memory
			a := running{now + r.wall, n, r.cpus, r.memory}
			i, _ := slices.BinarySearchFunc(active, a, func(x, y running) int { return cmp.Compare(x.end, y.end) })
			active = slices.Insert(active, i, a)
			return true
		})
		for now = active[0].end; len(active) > 0 && active[0].end == now; active = active[1:] {
			nodes[active[0].node].cpus += active[0].cpus
			nodes[active[0].node].memory += active[0].memory
		}
	}
	return now
}

// MarshalJSON writes seconds, and null for what is not known.
func (m Makespan) MarshalJSON() ([]byte, error) {
	type out struct {
		Nodes        int      `json:"nodes"`
		CPUs         int      `json:"cpus"`
		MemoryBytes  int64    `json:"memory_bytes,omitempty"`
		Rows         int      `json:"rows"`
		Measured     int      `json:"measured_rows"`
		Guessed      int      `json:"guessed_rows"`
		TooLarge     int      `json:"too_large_rows"`
		Bound        *float64 `json:"bound_seconds"`
		Work         *float64 `json:"work_bound_seconds"`
		CriticalPath *float64 `json:"critical_path_seconds"`
		Longest      *float64 `json:"longest_first_seconds"`
	}
	o := out{
		Nodes: m.Cluster.Nodes, CPUs: m.Cluster.CPUs, MemoryBytes: m.Cluster.MemoryBytes, Rows: m.Rows, Measured: m.Measured, Guessed: m.Guessed,
		TooLarge: m.TooLarge,
	}
	if m.Measured > 0 {
		seconds := func(d time.Duration) *float64 { s := d.Seconds(); return &s }
		o.Bound, o.Work, o.CriticalPath, o.Longest = seconds(m.Bound()), seconds(m.Work), seconds(m.Path), seconds(m.Longest)
	}
	return json.Marshal(o)
}
