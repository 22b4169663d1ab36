package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index/pick"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/machine/machinetest"
)

// madeUp are machines that do not exist, by name.
func madeUp() map[string]*machinetest.Fake {
	change := func(c func(*machinetest.Fake)) *machinetest.Fake {
		f := machinetest.Workstation()
		c(f)
		return f
	}
	return map[string]*machinetest.Fake{
		"workstation":    machinetest.Workstation(),
		"nothing":        {OS: "linux"},
		"Windows":        machinetest.Windows(),
		"ROCm":           machinetest.ROCm(),
		"Debian's torch": change(machinetest.DebianTorch),
		"free-threaded": change(func(f *machinetest.Fake) {
			f.Programs["/venv/bin/python -"] = `{"version": "3.13.1", "free_threaded": true}`
		}),
		"a hidden GPU": change(func(f *machinetest.Fake) { f.Env = append(f.Env, "CUDA_VISIBLE_DEVICES=1") }),
		"Python's own glibc": change(func(f *machinetest.Fake) {
			f.Programs["/venv/bin/python -"] = `{"version": "3.12.3", "glibc": "2.17"}`
		}),
		"a newer driver": change(func(f *machinetest.Fake) {
			f.Programs["/usr/bin/nvidia-smi"] = "| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04   CUDA Version: 13.3     |"
		}),
		"a driver without its tool": change(func(f *machinetest.Fake) { delete(f.Programs, "/usr/bin/"+machinetest.SMI) }),
		"musl": {OS: "linux", Programs: map[string]string{
			"ldd --version": "!musl libc (x86_64)\nVersion 1.2.5\nDynamic Program Loader\n",
		}},
		"macOS": {OS: "darwin", Arch: "arm64", Env: []string{"PATH=/bin"}, Programs: map[string]string{
			"/bin/python3 -": `{"version": "3.12.4", "macos": "14.5"}`,
		}},
		"answers without sense": {OS: "linux", Env: []string{"PATH=/bin"}, Programs: map[string]string{
			"/bin/python3 -": "hello", "/bin/" + machinetest.SMI: "Failed to initialize NVML\n", "ldd --version": "?",
		}, Files: map[string]string{"/proc/driver/nvidia/version": "?"}},
	}
}

// oldABI is a library with symbols of the C++ ABI before C++11.
func oldABI(t *testing.T) string {
	t.Helper()
	cxx, err := exec.LookPath("g++")
	if err != nil {
		kilntest.Lacking(t, "cc", "no g++")
	}
	lib := filepath.Join(t.TempDir(), "libc10.so")
	cmd := exec.CommandContext(t.Context(), cxx, "-shared", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", "-x", "c++", "-", "-o", lib)
	cmd.Stdin = strings.NewReader("#include <string>\nnamespace c10 { void f(const std::string &s) { (void)s.size(); } }\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDoctorAndPickAgree: what the two commands say of a machine is the same.
func TestDoctorAndPickAgree(t *testing.T) {
	server := pickServer()
	defer server.Close()
	machines := madeUp()
	if runtime.GOOS == "linux" {
		f := machinetest.Workstation()
		f.Files["/venv/lib/python3.12/site-packages/torch/lib/libc10.so"] = oldABI(t)
		machines["an ABI that the table does not know"] = f
	}
	for name, fake := range machines {
		t.Run(name, func(t *testing.T) {
			run := func(into any, args ...string) {
				t.Helper()
				var stdout, stderr bytes.Buffer
				a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, lookAt: fake.Host()}
				root := a.command()
				root.SetArgs(args)
				if err := root.ExecuteContext(t.Context()); err != nil && !errors.As(err, new(rowsFailedError)) {
					t.Fatalf("%v: %v\n%s", args, err, &stderr)
				}
				if err := json.Unmarshal(stdout.Bytes(), into); err != nil {
					t.Fatalf("%v: %v\n%s", args, err, &stdout)
				}
			}
			var doctor struct{ Machine machine.Machine }
			var picked struct{ Machine pick.Target }
			run(&doctor, "doctor", "--json")
			run(&picked, "pick", "fa", "--index", server.URL, "--json")
			d, p := doctor.Machine, picked.Machine
			var gpus [2]string
			for _, g := range d.GPUs {
				if !g.Hidden && g.ComputeCapability+g.Target != "" {
					gpus[0] += g.Name + " " + g.ComputeCapability + g.Target + "\n"
				}
			}
			for _, g := range p.GPUs {
				gpus[1] += g.Name + " " + g.Arch + "\n"
			}
			for what, said := range map[string][2]string{
				"Python":             {d.Python.Version, p.Python},
				"free-threaded":      {fmt.Sprint(d.Python.FreeThreaded), fmt.Sprint(p.FreeThreaded)},
				"torch":              {d.Torch.Version, p.Torch},
				"CUDA of torch":      {d.Torch.CUDA, p.TorchCUDA},
				"ROCm of torch":      {d.Torch.HIP, p.TorchROCm},
				"C++ ABI":            {d.Torch.CXX11ABI, p.TorchABI},
				"glibc":              {d.GLIBC, p.Glibc},
				"musl":               {d.Musl, p.Musl},
				"macOS":              {d.MacOS, p.MacOS},
				"driver":             {strings.TrimSuffix(d.Driver.Version, "none"), p.Driver},
				"no driver":          {fmt.Sprint(d.Driver.Version == "none"), fmt.Sprint(p.NoDriver)},
				"CUDA of the driver": {d.Driver.CUDA, p.DriverCUDA},
				"GPUs":               gpus,
			} {
				if said[0] != said[1] {
					t.Errorf("%s: doctor says %q, pick says %q", what, said[0], said[1])
				}
			}
		})
	}
}

// TestForPick: what picking needs to know is found on machines of several kinds.
func TestForPick(t *testing.T) {
	station := pick.Target{
		OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12.3", Torch: "2.9.0+cu128", TorchCUDA: "12.8", Driver: "580.159.04", DriverCUDA: "13.0",
		GPUs: []pick.GPU{{Name: "NVIDIA H200", Arch: "9.0"}},
	}
	newer, blind := station, station
	newer.DriverCUDA, blind.GPUs = "13.3", nil
	machines := madeUp()
	for name, want := range map[string]pick.Target{
		"workstation": station, "a newer driver": newer, "a driver without its tool": blind, "a hidden GPU": blind,
		"nothing": {OS: "linux", Arch: "x86_64", NoDriver: true},
		"ROCm": {
			OS: "linux", Arch: "x86_64", Python: "3.12.1", Torch: "2.6.0+rocm6.2.4", TorchROCm: "6.2.41134-65d174c3e", NoDriver: true,
			GPUs: []pick.GPU{{Arch: "gfx90a"}, {Arch: "gfx1100"}},
		},
		"Windows": {
			OS: "windows", Arch: "x86_64", Python: "3.12.3", Torch: "2.9.0+cu128", TorchCUDA: "12.8", Driver: "560.94", DriverCUDA: "12.6",
			GPUs: []pick.GPU{{Name: "NVIDIA GeForce RTX 4090", Arch: "8.9"}},
		},
		"musl":                  {OS: "linux", Arch: "x86_64", Musl: "1.2", NoDriver: true},
		"macOS":                 {OS: "macos", Arch: "aarch64", MacOS: "14.5", Python: "3.12.4", NoDriver: true},
		"answers without sense": {OS: "linux", Arch: "x86_64", NoDriver: true},
	} {
		got := forPick(machine.Probe(t.Context(), machines[name].Host(), machine.ProbeOptions{}))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
