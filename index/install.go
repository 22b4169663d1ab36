package index

import (
	"cmp"
	"slices"
	"strings"
)

// Install is how to install one build of a project with the usual clients. Each text is
// complete and can be copied as it is.
type Install struct {
	// Pip is a command line.
	Pip string `json:"pip"`
	// UV is a command line, and UVProject what a project's pyproject.toml needs.
	UV        string `json:"uv"`
	UVProject string `json:"uv_project"`
	// Poetry are two command lines.
	Poetry string `json:"poetry"`
	// Requirements is a requirements file with hashes.
	Requirements string `json:"requirements"`
}

// InstallLines says how to install the version that files have, from the repository at the URL
// simple. files are those of one version and build in it, usually one per Python; their
// hashes go into the requirements file.
//
// The commands name the version exactly, label included, because installers would otherwise
// take the label that is the greatest as text. They exclude source distributions, since pip
// would build a newer one that another index has.
func InstallLines(project, simple string, files ...*File) Install {
	version := files[0].Version().String()
	pin := project + "==" + version
	source := sourceName(files[0].Built())
	var hashes []string
	for _, f := range files {
		hashes = append(hashes, f.SHA256.String())
	}
	slices.Sort(hashes)
	hashes = slices.Compact(hashes)
	var req strings.Builder
	req.WriteString("--extra-index-url " + simple + "\n--only-binary " + project + "\n" + pin)
	for _, h := range hashes {
		req.WriteString(" \\\n    --hash=sha256:" + h)
	}
	req.WriteString("\n")
	return Install{
		Pip: "pip install " + pin + " --only-binary " + project + " --extra-index-url " + simple,
		UV:  "uv pip install " + pin + " --index " + simple,
		UVProject: "[project]\ndependencies = [\"" + pin + "\"]\n\n" +
			"[[tool.uv.index]]\nname = \"" + source + "\"\nurl = \"" + simple + "\"\nexplicit = true\n\n" +
			"[tool.uv.sources]\n" + project + " = { index = \"" + source + "\" }\n",
		Poetry: "poetry source add --priority=explicit " + source + " " + simple + "\n" +
			"poetry add --source " + source + " " + pin,
		Requirements: req.String(),
	}
}

// sourceName is how configuration files call a view: kiln-cu128-torch29.
func sourceName(c Coordinates) string {
	name := "kiln"
	if c.Toolkit != "" {
		name += "-" + c.Toolkit
	}
	if len(c.Torch) > 0 {
		name += "-torch" + c.Torch[0]
	}
	return strings.ReplaceAll(name, ".", "")
}

// TorchIndex returns the URL of the index from which PyTorch publishes its builds for a toolkit.
func TorchIndex(toolkit string) string {
	return "https://download.pytorch.org/whl/" + cmp.Or(toolkit, "cpu")
}
