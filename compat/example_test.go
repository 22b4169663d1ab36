package compat_test

import (
	"fmt"

	"github.com/kiln-build/kiln/compat"
)

func Example() {
	for _, f := range compat.Default().Check(compat.Combo{
		OS: "ubuntu-22.04", Python: "3.12", CUDA: "12.1.0", Torch: "2.6.0", Arch: "8.0 9.0+PTX",
	}) {
		fmt.Println(f.Severity, f.Axes, f.Message)
		fmt.Println(f.Fix)
	}
	// Output:
	// error [torch cuda] torch 2.6.0 has no CUDA 12.1 build (published: 11.8, 12.4, 12.6)
	// use cuda 12.4.x or 12.6.x, or torch 2.2-2.5
}

func ExampleParseArchList() {
	l, err := compat.ParseArchList("9.0+PTX sm_86, 8.0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l, "| runs on 8.9:", l.Covers(compat.CC{Major: 8, Minor: 9}))

	_, err = compat.ParseArchList("8.0 9.0+PTXX")
	fmt.Println(err)
	// Output:
	// 8.0 8.6 9.0+PTX | runs on 8.9: true
	// arch list: byte 4: "9.0+PTXX" has an unknown ending "+PTXX", did you mean "9.0+PTX"?
}
