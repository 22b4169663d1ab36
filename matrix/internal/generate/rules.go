package main

import "github.com/kiln-build/kiln/internal/units"

// This file holds what the types of document.go do not say: how a value is spelled,
// what is taken where a key is left out, and what the parts are called. Spellings
// repeat checks of package matrix and must never be stricter: the tests hold random
// documents against both.

// spelling is a kind of text with a form of its own, a definition of the schema.
type spelling struct {
	words    string // as the manual calls it, in the singular
	plural   string
	describe string
	pattern  string
	// from names the variable of package matrix that holds the pattern.
	from string
}

// notName stands for the white space that kiln skips before a version. It is wider:
// engines do not agree on what white space is.
const notName = `\W*`

var spellings = map[string]spelling{
	"packageName": {
		words: "distribution name", plural: "distribution names",
		describe: "Letters, digits and `.`, `_`, `-` between them.",
		pattern:  `^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`,
	},
	"packageVersion": {
		words: "version", plural: "versions",
		describe: "A version (PEP 440) without a local part, in quotes.",
		pattern:  `^` + notName + `[vV]?[0-9][^+]*$`,
	},
	"pythonVersion": {
		words: "Python version", plural: "Python versions",
		describe: "A minor version such as \"3.12\", in quotes; \"3.13t\" is the free-threaded build.",
		from:     "pythonPattern",
	},
	"toolkitVersion": {
		words: "toolkit version", plural: "toolkit versions",
		describe: "Two or three numbers such as \"12.8.1\" or \"6.4\", in quotes.",
		pattern:  `^[0-9]+(\.[0-9]+){1,2}$`,
	},
	"torchVersion": {
		words: "torch version", plural: "torch versions",
		describe: "A version such as \"2.9.0\", in quotes and without a local part.",
		pattern:  `^([0-9]+!)?[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?$`,
	},
	"versionPattern": {
		words: "[version pattern](#version-patterns)", plural: "these",
		describe: "A version prefix (\"12.8\" matches every 12.8.x) or a range (\">=2.5,<2.7\").",
		pattern:  `^` + notName + `[0-9]`,
	},
	"namePattern": {
		words: "[name pattern](#name-patterns)", plural: "these",
		describe: "A name. `*` matches any characters and `?` one character.",
		pattern:  `^[^\[\]\\]+$`,
	},
	"toolkitPattern": {
		words: "[toolkit pattern](#toolkit-patterns)", plural: "these",
		describe: "A CUDA version or range (\"12.8\", \">=12.8\"), the same after the word rocm (\"rocm >=6\"), or one of cuda, rocm, none and default.",
		pattern:  `^` + notName + `((cuda|rocm)?` + notName + `[0-9]|(default|none|cuda|rocm)` + notName + `$)`,
	},
	"axisName": {
		words: "axis name", plural: "axis names",
		describe: "Lower-case letters, digits and `_`, starting with a letter.",
		pattern:  `^[a-z][a-z0-9_]*$`,
	},
	"axisValue": {
		words: "name", plural: "names",
		describe: "Letters, digits and `.`, `_`, `+`, `-`.",
		pattern:  `^[A-Za-z0-9._+-]+$`,
	},
	"variableName": {
		words: "variable name", plural: "variable names",
		describe: "The name of an environment variable: letters, digits and `_`.",
		from:     "envName",
	},
	"moduleName": {
		words: "module name", plural: "module names",
		describe: "The name of a Python module, with dots before submodules.",
		pattern:  `^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`,
	},
	"requirement": {
		words: "requirement", plural: "requirements",
		describe: "A requirement (PEP 508), such as \"numpy>=1.26\".",
		pattern:  `[A-Za-z0-9]`,
	},
	"nonemptyText": {
		words: "text", plural: "texts",
		describe: "Text that is not empty.",
		pattern:  `[\s\S]`,
	},
	"sha256": {
		words: "64 hexadecimal digits", plural: "hashes",
		describe: "64 hexadecimal digits.",
		pattern:  `^[0-9A-Fa-f]{64}$`,
	},
	"wheelTag": {
		words: "wheel tag", plural: "wheel tags",
		describe: "A Python tag and an ABI tag, such as cp39-abi3.",
		pattern:  `^[A-Za-z][A-Za-z0-9_.]*-[A-Za-z0-9_.]+$`,
	},
	"platformTag": {
		words: "platform tag", plural: "platform tags",
		describe: "A wheel platform tag, such as linux_x86_64.",
		pattern:  `^[A-Za-z0-9_]+$`,
	},
	"size": {
		words: "size", plural: "sizes",
		describe: "A number and a unit: B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024).",
		pattern:  units.SizePattern,
	},
	"duration": {
		words: "time span", plural: "time spans",
		describe: "Numbers with their units: \"90s\", \"45m\", \"2h30m\".",
		pattern:  `^\+?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`,
	},
}

// rule says how the values and the keys of a field are spelled.
type rule struct {
	values   string // a key of spellings
	keys     string // a key of spellings, for maps
	nonempty bool   // lists inside a map have an element
	one      bool   // no lists
	words    string // what the manual calls the values, if not by their type
}

var rules = map[string]rule{
	"Document.Packages": {keys: "packageName"},

	"Package.Versions":   {values: "packageVersion"},
	"Package.ExtraDeps":  {values: "requirement"},
	"Package.TestImport": {values: "moduleName"},
	"Package.WheelTag":   {values: "wheelTag"},
	"Package.Env":        {keys: "variableName"},
	"Package.ArchLists":  {words: "architecture list"},
	"Package.Arch":       {words: "architecture list or the name of one"},

	"Source.Index":  {values: "nonemptyText"},
	"Source.Git":    {values: "nonemptyText"},
	"Source.Path":   {values: "nonemptyText"},
	"Source.Sdist":  {values: "nonemptyText"},
	"Source.SHA256": {values: "sha256"},

	"TorchSource.Index": {values: "nonemptyText"},
	"TorchSource.Path":  {values: "nonemptyText"},

	"Group.Version": {values: "packageVersion"},
	"Group.OS":      {values: "axisValue"},
	"Group.Python":  {values: "pythonVersion"},
	"Group.CUDA":    {values: "toolkitVersion"},
	"Group.ROCm":    {values: "toolkitVersion"},
	"Group.Torch":   {values: "torchVersion"},
	"Group.Axes":    {keys: "axisName", values: "axisValue", nonempty: true},

	"TorchAxis.Stable": {values: "torchVersion"},
	"PythonAxis.ABI3":  {values: "pythonVersion"},

	"Single.Version": {values: "packageVersion"},
	"Single.OS":      {values: "axisValue"},
	"Single.Python":  {values: "pythonVersion", one: true},
	"Single.CUDA":    {values: "toolkitVersion"},
	"Single.ROCm":    {values: "toolkitVersion"},
	"Single.Torch":   {values: "torchVersion", one: true},
	"Single.Axes":    {keys: "axisName", values: "axisValue"},

	"Shared.Arch":       {words: "architecture list or the name of one"},
	"Shared.Env":        {keys: "variableName"},
	"Shared.ExtraDeps":  {values: "requirement"},
	"Shared.TestImport": {values: "moduleName"},
	"Shared.WheelTag":   {values: "wheelTag"},
	"Shared.Platform":   {values: "platformTag"},

	"Match.Kind":    {values: "namePattern"},
	"Match.Version": {values: "versionPattern"},
	"Match.OS":      {values: "namePattern"},
	"Match.Python":  {values: "versionPattern"},
	"Match.CUDA":    {values: "versionPattern"},
	"Match.ROCm":    {values: "versionPattern"},
	"Match.Torch":   {values: "versionPattern"},
	"Match.Axes":    {keys: "axisName", values: "namePattern"},

	"Patch.Find":    {values: "nonemptyText"},
	"Test.Requires": {values: "requirement"},

	"WorkflowKiln.SHA256": {values: "sha256"},
}

// shortForms are the structs that may be written without a map, with the type of what is written.
var shortForms = map[string]string{
	"Test": "TestKind", "WorkflowKiln": "Text", "TorchAxis": "OneOrMany[Version]", "PythonAxis": "OneOrMany[Version]",
}

// defaults are the values that stand in for keys left out, where that is one fixed
// value. The comment of the field must name it too.
var defaults = map[string]string{
	"Package.LocalVersion": "{toolkit_tag}-torch{torch}",
	"Package.RuntimeTorch": "any",
	"Package.Repair":       "off",
	"Source.Submodules":    "true",
	"Group.OS":             "ubuntu-22.04",
	"Single.Kind":          "wheel",
	"Single.OS":            "ubuntu-22.04",
	"Build.Frontend":       "build",
	"Build.Isolation":      "false",
	"Build.Network":        "false",
	"Build.CUDACheck":      "strict",
	"Test.Timeout":         "10m",
	"Publish.Tag":          "v{version}",
	"Publish.Title":        "{package} {version}",
	"Publish.Untested":     "false",
	"PublishIndex.Remote":  "origin",
	"Workflow.Name":        "wheels",
	"Workflow.Branch":      "main",
	"Workflow.MSVC":        "14.39",
	"Workflow.Timeout":     "6h",
}

// leftOut says in words what a missing key means, where it is not one fixed value.
var leftOut = map[string]string{
	"Package.Versions":    "`version_from`, or a `version` in every group",
	"Package.TestImport":  "the package name, `_` in place of `-`",
	"Package.Source":      "the public package index",
	"Package.TorchSource": "PyTorch's index",
	"Package.Arch":        "see [GPU architectures](#gpu-architectures)",
	"Package.Reuse":       "every row is compiled",
	"Package.Matrix":      "the [base form](#a-first-file)",
	"Package.WheelTag":    "the tag of the interpreter",

	"VersionFrom.Pattern": "matches `__version__` and `version`",

	"Group.Kind":    "`wheel`",
	"Group.Version": "every version of the package",
	"Group.Python":  "the Python versions of the run",
	"Group.CUDA":    "no CUDA",
	"Group.ROCm":    "no ROCm",
	"Group.Torch":   "no fixed torch",

	"Single.Version": "every version of the package",
	"Single.CUDA":    "no CUDA",
	"Single.ROCm":    "no ROCm",
	"Single.Torch":   "no fixed torch",

	"Shared.Arch":         "as the package",
	"Shared.Image":        "as the package",
	"Shared.Env":          "as the package",
	"Shared.ImageSetup":   "as the package",
	"Shared.BeforeBuild":  "as the package",
	"Shared.Repair":       "as the package",
	"Shared.Merge":        "the files of its own build",
	"Shared.AfterBuild":   "as the package",
	"Shared.BeforeTest":   "as the package",
	"Shared.TorchSource":  "as the package",
	"Shared.ExtraDeps":    "as the package",
	"Shared.BuildArgs":    "as the package",
	"Shared.TestImport":   "as the package",
	"Shared.Test":         "as the package",
	"Shared.LocalVersion": "as the package",
	"Shared.WheelTag":     "as the package",
	"Shared.Resources":    "as the package",
	"Shared.Platform":     "the platform of `os`",

	"Patch.Count":      "at least one",
	"Test.Kind":        "`import` for wheels, `sdist` for sdist rows",
	"Test.RequiresGPU": "`false`",
	"Test.Image":       "the image of the build, `-runtime` in place of `-devel`",

	"TorchSource.System": "`false`",
	"Python.Source":      "the image's, else a managed one",

	"Cache.Remote":             "no shared cache",
	"Publish.To":               "the only target",
	"PublishTarget.Endpoint":   "GitHub's or Amazon's",
	"PublishTarget.Region":     "detected",
	"PublishTarget.Draft":      "`false`",
	"PublishTarget.Prerelease": "`false`",
	"Keep.Days":                "no limit",
	"Keep.Releases":            "no limit",
	"Workflow.Kiln":            "the release that generated the workflow",
	"Workflow.Rows":            "all rows",
	"Workflow.MaxParallel":     "as many as the host allows",
	"Workflow.ReleaseOn":       "`dispatch`, and `tag` if it is a trigger",
	"Workflow.Cache":           "`true`, unless `cache.remote` is set",
	"Workflow.Attest":          "`false`",
	"Workflow.SignKey":         "not signed",
	"WorkflowKiln.Version":     "the release that generated the workflow",
	"WorkflowKiln.Wheel":       "not from a wheel",
	"WorkflowKiln.Index":       "https://pypi.org/simple/",
	"WorkflowKiln.URL":         "that of the release",
	"Workflow.Runners":         "the hosted runner of that name",
	"Workflow.Sandbox":         "docker for rows with an image or CUDA, else host",
	"Workflow.GPURunner":       "no test on a GPU",
	"Workflow.Actions":         "those that kiln pins",
	"Workflow.Triggers":        "started manually only",
	"Workflow.WindowsCUDA":     "the row's own version",
}

// part is a struct as the manual presents it.
type part struct {
	name string
	// heading is the title of its section, prefix what stands before its keys.
	heading, prefix string
	// subject takes the place of the Go name in the comment; one and many are its
	// name in the middle of a sentence.
	subject, one, many string
}

// parts lists the structs in the order of the manual.
var parts = []part{
	{"Document", "Top level", "", "The top level", "document", "documents"},
	{"Package", "A package", "", "A package", "package", "packages"},
	{"Source", "The source code", "source.", "`source`", "source", "sources"},
	{"TorchSource", "Torch source", "torch_source.", "`torch_source`", "map", "maps"},
	{"Python", "Which Python is used", "python.", "`python`", "map", "maps"},
	{"Reuse", "Rows that are proven", "reuse.", "`reuse`", "map", "maps"},
	{"VersionFrom", "Version from a file", "version_from.", "`version_from`", "map", "maps"},
	{"Group", "A group of rows", "matrix[].", "A group", "group", "groups"},
	{"TorchAxis", "One wheel for many torch releases", "matrix[].torch.", "`torch` in a group or a row", "map", "maps"},
	{"PythonAxis", "One wheel for many Pythons", "matrix[].python.", "`python` in a group or a row", "map", "maps"},
	{"Match", "An exclude rule", "exclude[].", "A rule", "rule", "rules"},
	{"Single", "A single row", "include[].", "An included row", "row", "rows"},
	{"Build", "Build settings", "build.", "`build`", "map", "maps"},
	{"Patch", "A patch", "build.patches[].", "A patch", "patch", "patches"},
	{"Test", "Test settings", "test.", "`test`", "map", "maps"},
	{"Resources", "Resources of a build", "resources.", "`resources`", "map", "maps"},
	{"Cache", "Compile cache", "cache.", "`cache`", "map", "maps"},
	{"Publish", "Publishing", "publish.", "`publish`", "map", "maps"},
	{"PublishTarget", "A publish target", "publish.targets.NAME.", "A target", "target", "targets"},
	{"PublishIndex", "The index of published files", "publish.index.", "`publish.index`", "map", "maps"},
	{"Keep", "Retention", "publish.keep.", "`publish.keep`", "map", "maps"},
	{"Workflow", "The hosted workflow", "workflow.", "`workflow`", "map", "maps"},
	{"WorkflowKiln", "How jobs get kiln", "workflow.kiln.", "`workflow.kiln`", "map", "maps"},
}

// partOf returns the part for a struct, or nil.
func partOf(name string) *part {
	for i := range parts {
		if parts[i].name == name {
			return &parts[i]
		}
	}
	return nil
}

// templateValues explains the values that templates may use.
var templateValues = map[string]string{
	"package":         "name of the package, normalized",
	"version":         "version of the package",
	"os":              "operating system, as written",
	"platform":        "wheel platform tag",
	"python":          "Python version",
	"python_tag":      "tag of the interpreter",
	"toolkit":         "`cuda`, `rocm` or `none`",
	"toolkit_tag":     "short name of the toolkit; empty without one",
	"toolkit_version": "version of the toolkit, as written",
	"cuda":            "CUDA version; empty without CUDA",
	"cuda_major":      "its first number",
	"cuda_minor":      "its first two numbers",
	"cuda_nodot":      "the same without the dot",
	"rocm":            "ROCm version; empty without ROCm",
	"torch":           "torch version",
	"torch_minor":     "its first two numbers",
	"torch_nodot":     "the same without the dot",
	"torch_index":     "the toolkit as PyTorch's index writes it",
	"cxx11abi":        "C++ library ABI of that torch build: `TRUE` or `FALSE`",
	"arch":            "GPU architectures, as written",
	"arch_numbers":    "the same as numbers with semicolons; `{arch_numbers:,}` has commas, and so on",
}
