package build

import (
	"slices"
	"strings"

	"github.com/kiln-build/kiln/matrix"
)

// Variable is one of the environment of a build.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	// From says where the value comes from: "packages.yml", "row", "kiln", or "machine" if it is
	// known only where the row is built; Value then says what it is.
	From string `json:"from"`
}

// Variables are those that the front-end of a row and all that it starts see. Nothing of the calling
// shell is among them.
func Variables(row matrix.Row, settings matrix.Settings) []Variable {
	var out []Variable
	add := func(name, value, from string) { out = append(out, Variable{name, value, from}) }
	for _, pair := range rowVariables(row, settings) {
		name, value, _ := strings.Cut(pair, "=")
		from := "row"
		if _, own := settings.Env[name]; own {
			from = "packages.yml"
		}
		add(name, value, from)
	}
	out = append(out, []Variable{
		{"LC_ALL", "C.UTF-8", "kiln"},
		{"PYTHONHASHSEED", "0", "kiln"},
		{"PYTHONDONTWRITEBYTECODE", "1", "kiln"},
		{"PYTHONNOUSERSITE", "1", "kiln"},
		{"PYTHONUNBUFFERED", "1", "kiln"},
		{"PIP_CONFIG_FILE", "/dev/null", "kiln"},
		{"PIP_DISABLE_PIP_VERSION_CHECK", "1", "kiln"},
		{"PIP_NO_INPUT", "1", "kiln"},
		{"PIP_PROGRESS_BAR", "off", "kiln"},
		{"PIP_ROOT_USER_ACTION", "ignore", "kiln"},
		{"PIP_CACHE_DIR", "a folder of kiln's", "machine"},
		{"CARGO_HOME", "a folder of kiln's, unless the image has one", "machine"},
		{"RUSTUP_HOME", "rustup's folder, on the host if there is one", "machine"},
		{"COMPILER_PATH", "a folder of the compiler launcher", "machine"},
		{"KILN_LAUNCHER", "the settings of the compiler launcher", "machine"},
		{"PATH", "compiler launcher, virtual environment, toolkit, then the folders of the system", "machine"},
		{"HOME", "an empty folder of the row", "machine"},
		{"TMPDIR", "a folder of the row", "machine"},
		{"VIRTUAL_ENV", "the environment of the row", "machine"},
		{"MAX_JOBS", "compiler calls at once", "machine"},
		{"SOURCE_DATE_EPOCH", "the time of the source", "machine"},
	}...)
	if row.Torch != "" {
		add("TORCH_NO_COMPILER_WRAPPER", "1", "kiln")
	}
	if row.CUDA != "" {
		add("CUDA_HOME", "the toolkit that preflight found, with the compiler launcher as nvcc", "machine")
		add("CUDA_PATH", "the same", "machine")
		add("PYTORCH_NVCC", "the compiler launcher", "machine")
	}
	if row.ROCm != "" {
		add("ROCM_HOME", "the toolkit that preflight found", "machine")
		add("HIPCC", "the compiler launcher", "machine")
	}
	if len(settings.BeforeBuild)+len(settings.AfterBuild) > 0 {
		add("KILN_OUT", "the folder of the files, in before_build and after_build", "machine")
	}
	// What packages.yml sets counts, and stands once.
	seen := map[string]bool{}
	out = slices.DeleteFunc(out, func(v Variable) bool {
		again := seen[v.Name]
		seen[v.Name] = true
		return again
	})
	slices.SortStableFunc(out, func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })
	return out
}
