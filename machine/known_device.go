package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// deviceEntries are about GPUs and drivers, at run time.
func deviceEntries() []entry {
	return []entry{
		{
			id: "no-kernel-image", title: "The binary has no code for this GPU", modes: []int{13}, class: ClassFault,
			cause: "Neither machine code nor usable PTX for this GPU is in the binary.",
			text:  []pattern{plain("no kernel image is available"), text("CUDA_ERROR_NO_BINARY_FOR_GPU", `CUDA_ERROR_NO_BINARY_FOR_GPU`), text("is not compatible with the current PyTorch installation", `CUDA capability (?P<sm>sm_\d+) is not compatible with the current PyTorch installation`), text("hipErrorNoBinaryForGpu", `hipErrorNoBinaryForGpu`)},
			say: func(f *finding) (string, string) {
				d := "The binary was built for other GPUs"
				if f.e.ArchFound != "" {
					d += ": it has " + f.e.ArchFound
				}
				gpu := ""
				if len(f.e.GPUsFound) > 0 {
					gpu = join(f.e.GPUsFound)
					d += "; the GPU here is " + gpu
				} else if sm := f.get("sm", ""); sm != "" {
					d += "; the GPU here is " + sm
				}
				return d + ".", ways("install the wheel that was built for this GPU, or build it: TORCH_CUDA_ARCH_LIST="+cmp.Or(strings.ReplaceAll(gpu, " and ", ";"), "the GPU's compute capability, such as 8.6"),
					"a list that ends in +PTX also runs on later GPUs")
			},
			hides: []string{"python-error", "test-failed"},
		},
		{
			id: "ptx-too-new", title: "The PTX is newer than the driver", modes: []int{13}, class: ClassFault,
			cause: "The binary has no machine code for this GPU, and its PTX was written by a newer toolkit than the driver knows.",
			text:  []pattern{plain("provided PTX was compiled with an unsupported toolchain"), plain("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")},
			say: func(f *finding) (string, string) {
				d := "The driver cannot compile PTX of this toolkit"
				if f.e.DriverFound != "" && f.e.DriverFound != "none" {
					d += "; it is version " + f.e.DriverFound
				}
				fix := "update the driver"
				if drv, ok := compat.Default().Driver(f.e.CUDA); ok && drv.Linux != "" {
					fix += " to " + drv.Linux + " or newer"
				}
				return d + ".", ways(fix, "or build with machine code for this GPU, or with an older toolkit")
			},
			hides: []string{"python-error", "test-failed"},
		},
		{
			id: "ptx-bad", title: "The driver could not compile the PTX", class: ClassFault,
			cause: "The PTX is for a newer GPU than this one, or is damaged.",
			text:  []pattern{plain("a PTX JIT compilation failed"), plain("CUDA_ERROR_INVALID_PTX"), plain("SM version specified by .target is higher than default SM version assumed")},
			say: func(f *finding) (string, string) {
				return "The PTX in the binary is not usable on this GPU.", "build for this GPU's compute capability"
			},
			hides: []string{"python-error", "test-failed", "no-kernel-image"},
		},
		{
			id: "jit-off", title: "PTX may not or cannot be compiled here", class: ClassFault,
			cause: "CUDA_DISABLE_PTX_JIT is set, or the driver's PTX compiler is not in the container.",
			text:  []pattern{plain("PTX JIT compilation was disabled"), plain("CUDA_ERROR_JIT_COMPILATION_DISABLED"), text("PTX JIT compiler library", `PTX JIT compiler library (?:was )?not found`), plain("CUDA_ERROR_JIT_COMPILER_NOT_FOUND"), plain("libnvidia-ptxjitcompiler")},
			say: func(f *finding) (string, string) {
				return "The binary needs its PTX compiled, and that is not possible here.", ways("unset CUDA_DISABLE_PTX_JIT", "give the container the driver's compute part: NVIDIA_DRIVER_CAPABILITIES=compute,utility", "or build machine code for this GPU")
			},
			hides: []string{"python-error", "test-failed", "lib-missing"},
		},
		{
			id: "driver-old", title: "The NVIDIA driver is too old for this CUDA", class: ClassFault,
			cause: "Each CUDA major version needs a driver of at least a certain version.",
			text: []pattern{
				plain("CUDA driver version is insufficient for CUDA runtime version"), plain("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), plain("forward compatibility was attempted on non supported HW"),
				plain("system has unsupported display driver / cuda driver combination"), text("driver on your system is too old", `driver on your system is too old \(found version (?P<found>\d+)\)`), text("Driver/library version mismatch", `Driver/library version mismatch`),
				plain("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
			},
			say: func(f *finding) (string, string) {
				if slices.ContainsFunc(f.lines, func(l string) bool {
					return strings.Contains(l, "Driver/library version mismatch") || strings.Contains(l, "SYSTEM_DRIVER_MISMATCH") || strings.Contains(l, "driver combination")
				}) {
					return "The driver's library and its kernel module have different versions: it was updated while running.", ways("restart the machine, or reload the nvidia kernel modules", "in a container: remove CUDA's compat libraries from LD_LIBRARY_PATH")
				}
				cuda := cmp.Or(f.e.TorchCUDAFound, f.e.CUDA)
				d, fix := "The driver is older than this CUDA needs", "update the NVIDIA driver"
				if drv, ok := compat.Default().Driver(cuda); ok && drv.MinLinux != "" {
					d += fmt.Sprintf(": CUDA %s needs %s", compat.Minor(cuda), drv.MinLinux)
					fix += " to " + drv.MinLinux + " or newer"
				}
				if f.e.DriverFound != "" && f.e.DriverFound != "none" {
					d += ", this is " + f.e.DriverFound
				} else if v := number(f.get("found", "")); v > 0 {
					d += fmt.Sprintf("; the driver knows CUDA up to %d.%d", v/1000, v%1000/10)
				}
				return d + ".", ways(fix, "or use a torch for an older CUDA")
			},
			hides: []string{"python-error", "test-failed", "no-device"},
		},
		{
			id: "no-device", title: "No GPU can be seen", class: ClassFault,
			cause: "The driver's library is installed and no GPU is visible: the container has no access to one, or CUDA_VISIBLE_DEVICES hides it.",
			text: []pattern{
				text("no CUDA-capable device is detected", `no CUDA-capable device is detected`), plain("CUDA_ERROR_NO_DEVICE"), plain("No CUDA GPUs are available"), plain("Found no NVIDIA driver on your system"),
				plain("couldn't communicate with the NVIDIA driver"), text("No HIP GPUs are available", `No HIP GPUs are available`),
			},
			say: func(f *finding) (string, string) {
				return "The program wants a GPU and sees none.", ways("give the container the GPU: --gpus all, or --device nvidia.com/gpu=all", "check CUDA_VISIBLE_DEVICES, and `nvidia-smi`", "a test that needs a GPU: mark it requires_gpu")
			},
			hides: []string{"python-error", "test-failed"},
		},
		{
			id: "nvrtc-builtins", title: "NVRTC does not find its builtins library", class: ClassFault,
			cause: "NVRTC opens libnvrtc-builtins.so of its own minor version by name, and it lies in a folder that is not searched.",
			text:  []pattern{text("libnvrtc-builtins", `(?:failed to open|cannot open|Failed to load) (?P<lib>libnvrtc-builtins\S*\w)`), plain("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE")},
			say: func(f *finding) (string, string) {
				return cmp.Or(f.get("lib", ""), "libnvrtc-builtins") + " was not found beside libnvrtc.", ways("install nvidia-cuda-nvrtc of torch's CUDA version again", "or put the folder of libnvrtc on LD_LIBRARY_PATH")
			},
			hides: []string{"python-error", "test-failed", "lib-missing"},
		},
	}
}
