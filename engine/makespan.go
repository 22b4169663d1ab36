package engine

import (
	"cmp"
	"slices"
	"time"
)

// A Cluster is a number of equal machines.
type Cluster struct {
	Nodes int
	// CPUs and MemoryBytes are those of one node; zero memory means that it is not looked at.
	CPUs        int
	MemoryBytes int64
}

// A Load is what a job is expected to use, from beginning to end.
type Load struct {
	Wall        time.Duration
	CPUs        int
	MemoryBytes int64
}

// A Makespan is how long loads take on a cluster.
type Makespan struct {
	// TooLarge is how many loads need more than a node has. They count as using a whole node.
	TooLarge int
	// Work is the bound that the work sets: processor time of all loads over all processors.
	// Memory is the same for memory. Path is the longest load: loads do not wait for each other,
	// so it is the critical path. No schedule is shorter than the largest.
	Work, Memory, Path time.Duration
	// Longest is the time of a schedule that starts the longest loads first, wherever they fit.
	Longest time.Duration
}

// Bound is what no schedule can beat.
func (m *Makespan) Bound() time.Duration { return max(m.Work, m.Memory, m.Path) }

// EstimateMakespan says how long loads take on a cluster. Its nodes have at least one processor.
func EstimateMakespan(loads []Load, c Cluster) Makespan {
	var m Makespan
	var work, memory float64
	loads = slices.Clone(loads)
	for i := range loads {
		l := &loads[i]
		if l.CPUs > c.CPUs || c.MemoryBytes > 0 && l.MemoryBytes > c.MemoryBytes {
			m.TooLarge++
		}
		l.CPUs, l.MemoryBytes = min(l.CPUs, c.CPUs), min(l.MemoryBytes, c.MemoryBytes)
		work += l.Wall.Seconds() * float64(l.CPUs)
		memory += l.Wall.Seconds() * float64(l.MemoryBytes)
		m.Path = max(m.Path, l.Wall)
	}
	m.Work = time.Duration(work / float64(c.Nodes*c.CPUs) * float64(time.Second))
	if c.MemoryBytes > 0 {
		m.Memory = time.Duration(memory / (float64(c.Nodes) * float64(c.MemoryBytes)) * float64(time.Second))
	}
	m.Longest = longestFirst(loads, c)
	return m
}

// longestFirst is the makespan of the usual rule: whenever something ends, the longest load that
// fits starts.
func longestFirst(loads []Load, c Cluster) time.Duration {
	slices.SortStableFunc(loads, func(a, b Load) int { return cmp.Compare(b.Wall, a.Wall) })
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
	for len(loads) > 0 || len(active) > 0 {
		// Loads that ask for the same do not fit either when one of them did not.
		refused := map[[2]int64]bool{}
		loads = slices.DeleteFunc(loads, func(r Load) bool {
			key := [2]int64{int64(r.CPUs), r.MemoryBytes}
			if refused[key] {
				return false
			}
			n := slices.IndexFunc(nodes, func(f free) bool { return f.cpus >= r.CPUs && f.memory >= r.MemoryBytes })
			if n < 0 {
				refused[key] = true
				return false
			}
			nodes[n].cpus -= r.CPUs
			nodes[n].memory -= r.MemoryBytes
			a := running{now + r.Wall, n, r.CPUs, r.MemoryBytes}
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
