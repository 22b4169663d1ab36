package main

import (
	"flag"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

// conformance runs the suite of package quanttest, which is written for go test, where there is no
// Go. It ends the process.
func conformance(open func() (*cuda.Device, error)) {
	testing.Init()
	// The flags on the command line are not those of go test.
	if err := flag.CommandLine.Parse(nil); err != nil {
		panic(err) // there is nothing to parse
	}
	all := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "Backend", F: func(t *testing.T) {
		quanttest.TestBackend(t, func(t testing.TB) quant.Backend {
			d, err := open()
			if err != nil {
				t.Fatal(err)
			}
			return d
		})
	}}}, nil, nil)
}
