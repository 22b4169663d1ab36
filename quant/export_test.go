package quant

// NewCPUForTest returns a backend that multiplies with packed codes from minCols columns on, so that small matrices reach
// every kernel.
func NewCPUForTest(set string, threads, minCols int) *CPU {
	c, err := NewCPU(CPUOptions{Kernels: set, Threads: threads})
	if err != nil {
		panic(err)
	}
	changed := *c.kernels
	changed.MinCols = minCols
	c.kernels = &changed
	return c
}
