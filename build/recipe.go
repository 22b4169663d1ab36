package build

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// RecipeOptions are the choices of a run that enter a recipe.
type RecipeOptions struct {
	Sandbox string
	// TorchIndex is the address below which torch's indexes are; the suffix for
	// the toolkit is added. Default DefaultTorchIndex.
	TorchIndex string
	// DefaultImage is the image template for rows that name none; {version} is the
	// toolkit's. Default DefaultImage.
	DefaultImage string
}

const (
	// DefaultTorchIndex is where torch's own wheels are.
	DefaultTorchIndex = "https://download.pytorch.org/whl"
	// DefaultImage is the image of CUDA rows that name none.
	DefaultImage = "nvidia/cuda:{version}-devel-ubuntu22.04"
	// DefaultROCmImage is the image of ROCm rows that name none: AMD's, with all libraries, which
	// the headers of torch include.
	DefaultROCmImage = "rocm/dev-ubuntu-22.04:{version}-complete"
)

// ImageFor returns the image of a row that names none, "" for a row without a toolkit. template is
// RecipeOptions.DefaultImage.
func ImageFor(row *matrix.Row, template string) string {
	switch {
	case row.CUDA != "":
		return strings.ReplaceAll(cmp.Or(template, DefaultImage), "{version}", row.CUDA)
	case row.ROCm != "":
		return strings.ReplaceAll(DefaultROCmImage, "{version}", row.ROCm)
	}
	return ""
}

// NewRecipe makes the recipe of a row. It touches nothing.
func NewRecipe(row matrix.Row, settings matrix.Settings, source record.Source, opts RecipeOptions) (*record.Recipe, error) {
	r := &record.Recipe{
		Row: row, Settings: settings, Source: source, Sandbox: opts.Sandbox, Files: row.Files(),
		Native: row.Kind == matrix.KindWheel && !strings.HasSuffix(row.Platform, "any"),
	}
	if opts.Sandbox != "host" {
		if r.Image = cmp.Or(settings.Image, ImageFor(&row, opts.DefaultImage)); r.Image == "" {
			return nil, &NoImageError{Row: row.ID}
		}
		if r.TestImage = settings.Test.Image; r.TestImage == "" {
			r.TestImage = strings.Replace(r.Image, "-devel", "-runtime", 1)
		}
	}
	if err := requirements(r, opts); err != nil {
		return nil, err
	}
	r.Env = rowVariables(row, settings)
	r.Seal()
	return r, nil
}

// NoImageError says that a row has no image to be built in.
type NoImageError struct{ Row string }

func (e *NoImageError) Error() string {
	return e.Row + ": no container image; set image: for this row in packages.yml, or build it with --runner host"
}

// requirements splits what the build needs by the index it comes from. The split is
// on parsed names: torchvision is not torch.
func requirements(r *record.Recipe, opts RecipeOptions) error {
	torch := ""
	if r.Row.Torch != "" {
		torch = "torch==" + r.Row.Torch
	}
	have := map[string]bool{}
	for _, text := range r.Settings.ExtraDeps {
		req, err := wheel.ParseRequirement(text)
		if err != nil {
			return err
		}
		have[req.Name] = true
		switch {
		case req.Name != "torch":
			r.Deps = append(r.Deps, text)
		case torch == "":
			torch = text
		}
	}
	// The front-end itself: the environment holds nothing by itself, not even pip.
	if f := r.Settings.Frontend; !have[f] {
		r.Deps = append(r.Deps, f)
	}
	if torch == "" {
		return nil
	}
	r.Torch = []string{torch}
	if r.Settings.TorchSource.Kind == "index" {
		if r.TorchIndex = r.Settings.TorchSource.Location; r.TorchIndex == "" {
			base := opts.TorchIndex
			if base == "" {
				base = DefaultTorchIndex
			}
			r.TorchIndex = strings.TrimRight(base, "/") + "/" + r.Row.TorchIndex()
		}
	}
	return nil
}

// rowVariables are the variables that the row decides. The user's own win over what
// kiln only suggests, never over the architectures, which packages.yml cannot set.
func rowVariables(row matrix.Row, settings matrix.Settings) []string {
	env := map[string]string{}
	switch {
	case row.CUDA != "":
		env["FORCE_CUDA"] = "1"
		env["BUILD_TARGET"] = "cuda"
		env["TORCH_CUDA_ARCH_LIST"] = row.Arch
	case row.ROCm != "":
		env["FORCE_CUDA"] = "1" // torch's builder calls HIP by that name, too
		env["BUILD_TARGET"] = "rocm"
		env["USE_ROCM"] = "1"
		env["ROCM_VERSION"] = row.ROCm
		if row.Arch != "" {
			env["PYTORCH_ROCM_ARCH"] = strings.NewReplacer(" ", ";", ",", ";").Replace(row.Arch)
		}
	}
	if n := settings.Resources.NVCCThreads; n > 0 {
		env["NVCC_THREADS"] = itoa(n)
	}
	maps.Copy(env, settings.Env)
	if flags := strings.Join(stableMacros(&row), " "); flags != "" {
		if row.TorchStable != "" {
			env["TORCH_TARGET_VERSION"] = torchTarget(row.TorchStable)
		}
		// CFLAGS and CXXFLAGS would take the place of the flags of Python.
		env["CPPFLAGS"] = strings.TrimSpace(env["CPPFLAGS"] + " " + flags)
		if row.CUDA != "" {
			env["NVCC_APPEND_FLAGS"] = strings.TrimSpace(env["NVCC_APPEND_FLAGS"] + " " + flags)
		}
	}
	return sortedEnv(env)
}

// stableMacros are the compiler flags of a row for stable ABIs. Visual C++ takes none from variables
// that nvcc and torch would read too: there, the package has to set them.
func stableMacros(row *matrix.Row) []string {
	var out []string
	if strings.HasPrefix(row.Platform, "win") {
		return nil
	}
	if row.TorchStable != "" {
		out = append(out, "-DTORCH_TARGET_VERSION="+torchTarget(row.TorchStable))
	}
	if minor, err := strconv.Atoi(strings.TrimPrefix(row.ABI3, "3.")); err == nil {
		out = append(out, fmt.Sprintf("-DPy_LIMITED_API=0x03%02x0000", minor))
	}
	return out
}

// torchTarget is a release as torch's headers compare it: 0x020a000000000000 for 2.10.
func torchTarget(release string) string {
	var part [3]int
	for i, text := range strings.SplitN(release, ".", 3) {
		part[i], _ = strconv.Atoi(text) // the plan checked it
	}
	return fmt.Sprintf("0x%02x%02x%02x0000000000", part[0], part[1], part[2])
}

func sortedEnv(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}
