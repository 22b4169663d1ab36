package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/pick"
)

// fakeMachine answers a prober with fixed texts.
type fakeMachine struct {
	commands map[string]string // by the words of the command; missing is not found
	files    map[string]string
}

func (f fakeMachine) prober() prober {
	return prober{
		run: func(_ context.Context, name string, args ...string) ([]byte, error) {
			key := name
			if name != "nvidia-smi" && len(args) > 0 && args[0] == "-I" {
				key += " probe"
			} else if len(args) > 0 {
				key += " " + args[0]
			}
			out, ok := f.commands[key]
			if !ok {
				return nil, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
			}
			return []byte(out), nil
		},
		readFile: func(name string) ([]byte, error) {
			text, ok := f.files[name]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(text), nil
		},
		glob: func(pattern string) ([]string, error) {
			var out []string
			for name := range f.files {
				if ok, _ := filepath.Match(pattern, name); ok {
					out = append(out, name)
				}
			}
			return out, nil
		},
		goos: "linux", goarch: "amd64",
	}
}

const gpuQuery = "nvidia-smi --query-gpu=name,compute_cap,driver_version"

func TestProbe(t *testing.T) {
	tests := map[string]struct {
		machine fakeMachine
		want    pick.Machine
	}{
		"nothing": {
			want: pick.Machine{OS: "linux", Arch: "x86_64", NoDriver: true},
		},
		"workstation": {
			machine: fakeMachine{
				commands: map[string]string{
					"python3 probe": `{"python": "3.12.4", "free_threaded": false, "glibc": "2.39", "torch": "2.9.0+cu128", "torch_cuda": "12.8"}`,
					gpuQuery:        "NVIDIA H100 80GB HBM3, 9.0, 570.86.10\nNVIDIA H100 80GB HBM3, 9.0, 570.86.10\n",
					"nvidia-smi":    "| NVIDIA-SMI 570.86.10   Driver Version: 570.86.10   CUDA Version: 12.8     |",
				},
				files: map[string]string{"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n"},
			},
			want: pick.Machine{
				OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12.4", Torch: "2.9.0+cu128", TorchCUDA: "12.8", Driver: "570.86.10", DriverCUDA: "12.8",
				GPUs: []pick.GPU{{Name: "NVIDIA H100 80GB HBM3", Arch: "9.0"}, {Name: "NVIDIA H100 80GB HBM3", Arch: "9.0"}},
			},
		},
		"driver without its tool": {
			machine: fakeMachine{
				commands: map[string]string{"python probe": `{"python": "3.13.1", "free_threaded": true}`, "ldd --version": "ldd (Debian GLIBC 2.36-9+deb12u10) 2.36\n"},
				files:    map[string]string{"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n"},
			},
			want: pick.Machine{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.13.1", FreeThreaded: true, Driver: "580.65.06", DriverCUDA: "13.0"},
		},
		"AMD": {
			machine: fakeMachine{files: map[string]string{
				"/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 64\ngfx_target_version 0\n",
				"/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 304\ngfx_target_version 90010\n",
			}},
			want: pick.Machine{OS: "linux", Arch: "x86_64", NoDriver: true, GPUs: []pick.GPU{{Arch: "gfx90a"}}},
		},
		"no answer that makes sense": {
			machine: fakeMachine{
				commands: map[string]string{"python3 probe": "hello", gpuQuery: "Failed to initialize NVML: Driver/library version mismatch\n", "ldd --version": "?"},
				files:    map[string]string{"/proc/driver/nvidia/version": "?"},
			},
			want: pick.Machine{OS: "linux", Arch: "x86_64", NoDriver: true},
		},
	}
	for name, test := range tests {
		if diff := cmp.Diff(test.want, test.machine.prober().machine(t.Context(), "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestProbeThis: the real machine has a system and a processor, and its Python says which it is.
func TestProbeThis(t *testing.T) {
	p := prober{run: runCommand, readFile: os.ReadFile, glob: filepath.Glob, goos: "linux", goarch: "amd64"}
	python := os.Getenv("KILN_PYTHON")
	m := p.machine(t.Context(), python)
	if m.OS != "linux" || m.Arch != "x86_64" {
		t.Errorf("%+v", m)
	}
	if out, err := runCommand(t.Context(), "python3", "-c", "import platform; print(platform.python_version())"); err == nil && python == "" {
		if want := strings.TrimSpace(string(out)); m.Python != want {
			t.Errorf("Python %q, want %q", m.Python, want)
		}
	}
}

func TestPickFlags(t *testing.T) {
	base := pick.Machine{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.11.2", Torch: "2.8.0+cu126", TorchCUDA: "12.6", NoDriver: true}
	tests := map[string]struct {
		flags pickFlags
		want  pick.Machine
	}{
		"another torch and GPU": {
			flags: pickFlags{machine: pick.Machine{Torch: "2.9.0+cu128", Python: "3.13t"}, gpus: []string{"9.0"}},
			want:  pick.Machine{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.13", FreeThreaded: true, Torch: "2.9.0+cu128", TorchABI: "TRUE", GPUs: []pick.GPU{{Arch: "9.0"}}},
		},
		"no torch": {
			flags: pickFlags{machine: pick.Machine{Torch: "none"}, cuda: "12.8"},
			want:  pick.Machine{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.11.2", NoDriver: true, Toolkit: "cu128"},
		},
		"windows": {
			flags: pickFlags{machine: pick.Machine{OS: "windows", Driver: "580.88", Torch: "none"}, cuda: "cpu"},
			want:  pick.Machine{OS: "windows", Python: "3.11.2", Driver: "580.88", DriverCUDA: "13.0", Toolkit: "cpu"},
		},
	}
	for name, test := range tests {
		got, err := test.flags.apply(base)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPickOutput: the one line, the one reason, and what --explain and --json add.
func TestPickOutput(t *testing.T) {
	page := `{"meta":{"api-version":"1.4"},"name":"fa","versions":["1.0"],"files":[
		{"filename":"fa-1.0+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl","url":"a.whl","hashes":{"sha256":"` + strings.Repeat("ab", 32) + `"},"size":1,"_kiln":{"arch":["80","90"]}},
		{"filename":"fa-1.0+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl","url":"b.whl","hashes":{},"size":1,"_kiln":{"arch":["80","90"]}}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/catalog.json":
			fmt.Fprint(w, `{"kiln-catalog":1,"views":[{"path":"cu128/torch2.9"}]}`)
		case "/all/simple/fa/":
			w.Header().Set("Content-Type", index.TypeJSON)
			fmt.Fprint(w, page)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	run := func(f pickFlags) (string, string, error) {
		var stdout, stderr bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
		f.index, f.noProbe = server.URL, true
		err := a.pick(t.Context(), "fa", f)
		return stdout.String(), stderr.String(), err
	}
	machine := pick.Machine{OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12", Torch: "2.9.0+cu128"}
	line := "pip install fa==1.0+cu128.torch2.9 --only-binary fa --extra-index-url " + server.URL + "/cu128/torch2.9/simple/\n"
	out, _, err := run(pickFlags{machine: machine, gpus: []string{"9.0"}})
	if err != nil || out != line {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(pickFlags{machine: machine, explain: true})
	want := "machine   linux x86_64, glibc 2.39, Python 3.12, torch 2.9.0+cu128, C++11 ABI TRUE\n" +
		"best      fa-1.0+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl\n" +
		"no        fa-1.0+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl: was built for torch 2.8, this has 2.9.0+cu128\n\n" + line
	if diff := cmp.Diff(want, out); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	out, _, err = run(pickFlags{machine: machine, gpus: []string{"7.0"}})
	if out != "" || !errors.As(err, new(rowsFailedError)) || !strings.Contains(err.Error(), "has no code for 7.0; it has 8.0, 9.0") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(pickFlags{machine: machine, asJSON: true})
	var result struct {
		Best    struct{ Filename string }
		Install index.Install
		SHA256  string
		Near    []struct{ Misses []pick.Reason }
		Machine pick.Machine
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &result)); err != nil {
		t.Fatal(err)
	}
	if result.Install.Pip+"\n" != line || result.SHA256 != strings.Repeat("ab", 32) || len(result.Near) != 1 || result.Near[0].Misses[0].Kind != "torch" {
		t.Errorf("%s", out)
	}
	// What one machine prints, another reads.
	saved := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(saved, []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _, err = run(pickFlags{machineFile: saved}); err != nil || out != line {
		t.Errorf("with --machine: %v\n%s", err, out)
	}
}
