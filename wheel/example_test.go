package wheel_test

import (
	"fmt"

	"github.com/kiln-build/kiln/wheel"
)

// A build farm names its wheel, reads the name back, and asks whether a machine
// and a requirement accept it.
func Example() {
	version, err := wheel.ParseVersion("2.8.3")
	if err != nil {
		panic(err)
	}
	version, err = version.WithLocal("cu128-torch2.9.0")
	if err != nil {
		panic(err)
	}
	name := wheel.Filename{
		Name: "flash-attn", Version: version,
		Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"manylinux_2_28_x86_64"},
	}.String()
	fmt.Println(name)

	file, err := wheel.ParseFilename(name)
	if err != nil {
		panic(err)
	}
	supported, err := wheel.SupportedTags(wheel.Interpreter{
		Major: 3, Minor: 12,
		Platform: wheel.Platform{OS: "linux", Arch: "x86_64", Glibc: wheel.PlatformVersion{Major: 2, Minor: 36}},
	})
	if err != nil {
		panic(err)
	}
	for rank, tag := range supported {
		if tag == file.Tags()[0] {
			fmt.Println("accepted with rank", rank)
		}
	}

	requirement, err := wheel.ParseRequirement("Flash.Attn>=2.8,<3 ; sys_platform == 'linux'")
	if err != nil {
		panic(err)
	}
	fmt.Println(requirement.Name == file.Name, requirement.Specifier.Contains(file.Version))

	// The tag of many build farms, put into a name as it is:
	_, err = wheel.ParseFilename("flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl")
	fmt.Println(err)
	// Output:
	// flash_attn-2.8.3+cu128.torch2.9.0-cp312-cp312-manylinux_2_28_x86_64.whl
	// accepted with rank 9
	// true true
	// wheel name "flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl": '-' inside the local version of "2.8.3+cu128-torch2.9.0"; the right name is "flash_attn-2.8.3+cu128.torch2.9.0-cp312-cp312-linux_x86_64.whl"
}
