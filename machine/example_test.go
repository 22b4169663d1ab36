package machine_test

import (
	"fmt"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/machine"
)

func ExampleDiagnose() {
	found := machine.Diagnose(machine.Evidence{
		Stage: machine.StageCompile, ExitCode: 1, CUDA: "13.0.2",
		LogLines: []string{"nvcc fatal   : Unsupported gpu architecture 'compute_60'"},
	})
	for _, d := range found {
		fmt.Println(d.ID, d.Class)
		fmt.Println(d.Detail)
		fmt.Println(d.Fix)
	}
	// Output:
	// arch-unsupported fault
	// nvcc 13.0 cannot make code for 6.0 (compute_60): CUDA 12.9 was the last that could. 6.0 is Pascal: Tesla P100.
	// drop 6.0 from the arch list
	// or build with CUDA 12.9 or older, and the torch that goes with it
}

func ExampleSelectArchs() {
	choice, err := machine.SelectArchs(machine.ArchRequest{CUDA: "12.8", Devices: []compat.CC{{Major: 12}, {Major: 8, Minor: 6}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(choice.List, "from", choice.Source)
	for _, flag := range choice.List.GencodeFlags() {
		fmt.Println(flag)
	}
	// Output:
	// 8.6 12.0+PTX from devices
	// -gencode=arch=compute_86,code=sm_86
	// -gencode=arch=compute_120,code=sm_120
	// -gencode=arch=compute_120,code=compute_120
}
