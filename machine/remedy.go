package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// family finds the package manager of a distribution from the ids of its os-release.
func family(os, distribution string) string {
	switch os {
	case "windows", "darwin":
		return os
	}
	for id := range strings.FieldsSeq(strings.ToLower(distribution)) {
		switch id {
		case "debian", "ubuntu", "linuxmint", "pop", "raspbian":
			return "debian"
		case "fedora", "rhel", "centos", "rocky", "almalinux", "ol", "amzn":
			return "fedora"
		case "opensuse", "suse", "sles", "opensuse-leap", "opensuse-tumbleweed":
			return "suse"
		case "arch", "manjaro", "endeavouros":
			return "arch"
		case "alpine":
			return "alpine"
		}
	}
	return ""
}

// packageNames are what a tool is called, by family. "{py}" is the Python version,
// "{cuda}" that of the toolkit with a dash.
var packageNames = map[string]map[string]string{
	"c++": {
		"debian": "g++", "fedora": "gcc-c++", "suse": "gcc-c++", "arch": "gcc", "alpine": "g++",
	},
	"ninja": {
		"debian": "ninja-build", "fedora": "ninja-build", "suse": "ninja", "arch": "ninja", "alpine": "samurai",
	},
	"python-headers": {
		"debian": "python{py}-dev", "fedora": "python{py}-devel", "suse": "python3-devel", "arch": "python", "alpine": "python3-dev",
	},
	"python-venv": {
		"debian": "python{py}-venv", "fedora": "python{py}", "suse": "python3", "arch": "python", "alpine": "python3",
	},
	"git":    {"debian": "git", "fedora": "git", "suse": "git", "arch": "git", "alpine": "git"},
	"patch":  {"debian": "patch", "fedora": "patch", "suse": "patch", "arch": "patch", "alpine": "patch"},
	"cmake":  {"debian": "cmake", "fedora": "cmake", "suse": "cmake", "arch": "cmake", "alpine": "cmake"},
	"ccache": {"debian": "ccache", "fedora": "ccache", "suse": "ccache", "arch": "ccache", "alpine": "ccache"},
	"nvcc": {
		"debian": "cuda-toolkit-{cuda}", "fedora": "cuda-toolkit-{cuda}", "suse": "cuda-toolkit-{cuda}", "arch": "cuda",
	},
	"hipcc": {"debian": "rocm-hip-sdk", "fedora": "rocm-hip-sdk", "suse": "rocm-hip-sdk", "arch": "rocm-hip-sdk"},
	// The compiler alone, as distributions have it themselves.
	"hipcc-alone": {"debian": "hipcc", "fedora": "hipcc", "arch": "hip-runtime-amd"},
}

// installers are the commands that install packages.
var installers = map[string]string{
	"debian": "apt-get install -y", "fedora": "dnf install -y", "suse": "zypper install -y",
	"arch": "pacman -S --noconfirm", "alpine": "apk add",
}

// on other systems a tool comes in another way altogether.
var otherInstalls = map[string]map[string]string{
	"windows": {
		"c++":            `winget install Microsoft.VisualStudio.2022.BuildTools --override "--passive --add Microsoft.VisualStudio.Component.VC.Tools.x86.x64 --add Microsoft.VisualStudio.Component.Windows11SDK.22621"`,
		"ninja":          "python -m pip install ninja",
		"python-headers": "install Python from python.org with its development files (the Store version has none)",
		"python-venv":    "install Python from python.org",
		"git":            "winget install Git.Git",
		"patch":          "winget install Git.Git (it brings patch.exe)",
		"cmake":          "winget install Kitware.CMake",
		"ccache":         "winget install Ccache.Ccache",
		"nvcc":           "winget install Nvidia.CUDA --version {cuda.}",
		"hipcc":          "use Linux: PyTorch's ROCm builds need it",
	},
	"darwin": {
		"c++": "xcode-select --install", "ninja": "python3 -m pip install ninja", "python-headers": "brew install python@{py}",
		"python-venv": "brew install python@{py}", "git": "xcode-select --install", "patch": "xcode-select --install",
		"cmake": "brew install cmake", "ccache": "brew install ccache",
		"nvcc": "use Linux or Windows: there is no CUDA for macOS", "hipcc": "use Linux: there is no ROCm for macOS",
	},
}

// InstallCommand is the command that installs a tool ("c++", "ninja", "nvcc", "hipcc",
// "hipcc-alone", "python-headers", "python-venv", "git", "patch", "cmake", "ccache") on a system.
// os is that of Go, distribution the ids of os-release; python and cuda are versions
// and may be empty. Where the distribution is not known, the result names the commands
// of two. It is empty for an unknown tool. With inImage, it is written for a container,
// where one is root.
func InstallCommand(tool, os, distribution, python, cuda string, inImage bool) string {
	names := packageNames[tool]
	if names == nil {
		return ""
	}
	cudaDash, cudaDot := strings.ReplaceAll(compat.Minor(cuda), ".", "-"), compat.Minor(cuda)
	if cuda == "" {
		cudaDash, cudaDot = "12-8", "12.8"
	}
	py := strings.TrimSuffix(compat.Minor(python), "t")
	fill := func(s string, family string) string {
		v := py
		if v == "" || family == "fedora" && v == "3" {
			v = "3"
		}
		return strings.NewReplacer("{py}", v, "{cuda.}", cudaDot, "{cuda}", cudaDash).Replace(s)
	}
	fam := family(os, distribution)
	if other := otherInstalls[fam]; other != nil {
		return fill(other[tool], fam)
	}
	sudo := "sudo "
	if inImage {
		sudo = ""
	}
	one := func(fam string) string {
		name := names[fam]
		if name == "" {
			return ""
		}
		return sudo + installers[fam] + " " + fill(name, fam)
	}
	if fam != "" {
		if c := one(fam); c != "" {
			return c
		}
	}
	return one("debian") + " (Debian, Ubuntu) or " + one("fedora") + " (Fedora, RHEL)"
}

// install is InstallCommand for the machine of the evidence.
func (f *finding) install(tool string) string {
	c := InstallCommand(tool, f.e.OS, f.e.Distribution, f.e.Python, f.e.CUDA, f.e.asRoot())
	if f.e.Image != "" {
		return "in the image " + f.e.Image + ": " + c
	}
	return c
}

// installCUDA says how to get an nvcc of the wanted version.
func (f *finding) installCUDA() string {
	cuda := f.e.CUDA
	if cuda == "" && f.e.TorchCUDAFound != "none" {
		cuda = f.e.TorchCUDAFound
	}
	c := InstallCommand("nvcc", f.e.OS, f.e.Distribution, f.e.Python, cuda, f.e.asRoot())
	if fam := family(f.e.OS, f.e.Distribution); fam == "debian" || fam == "fedora" || fam == "suse" || fam == "" {
		c += ", from NVIDIA's repository"
	}
	return c
}

// startRuntime says how to start the service of podman or docker.
func startRuntime(runtime, os string, root bool) string {
	switch {
	case os != "linux" && os != "" && runtime == "podman":
		return "podman machine start"
	case os != "linux" && os != "":
		return "start Docker Desktop"
	case runtime == "podman":
		return "run `podman info` and correct what it says"
	}
	sudo := "sudo "
	if root {
		sudo = ""
	}
	return ways(sudo+"systemctl start docker", "or use podman, which needs no service")
}

// join lists words: "a, b and c".
func join(words []string) string {
	switch len(words) {
	case 0:
		return ""
	case 1:
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// few lists at most n words and counts the rest.
func few(words []string, n int) string {
	if len(words) <= n {
		return join(words)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:n], ", "), len(words)-n)
}

// lines joins ways to fix something, one a line, without empty ones.
func ways(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), "\n")
}

// sentences joins what there is to say.
func sentences(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), " ")
}
