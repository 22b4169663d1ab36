package matrix

// The types in this file are packages.yml as written. They are the single source
// for four things: the decoder walks them by reflection, the JSON Schema and
// docs/packages-yml.md are generated from them and their comments, and the tests
// decode every indented example below. A field's comment is what its user reads.

// Document is packages.yml as a whole.
//
// `packages` is required. `cache` configures a compile cache shared between machines; `publish` and
// `workflow` configure the steps after the build. Keys that begin with `x-` are ignored, so they can
// hold YAML anchors.
type Document struct {
	// The packages to build, by distribution name. Names are normalized as in PEP 503:
	// `flash_attn` and `flash-attn` are the same package.
	//
	//	packages:
	//	  flash-attn:
	//	    versions: ["2.8.3"]
	Packages Map[Package] `json:"packages"`
	// The compile cache that machines share. See docs/sharing.md.
	//
	//	cache: {remote: "https://cache.example.org/kiln|layout=bazel"}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Cache Cache `json:"cache,omitempty"`
	// Where `kiln publish` uploads finished files. See docs/publish.md.
	//
	//	publish:
	//	  targets: {release: {github: octo/wheels}}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Publish Publish `json:"publish,omitempty"`
	// Settings of the generated hosted-CI workflow. See docs/workflow.md.
	//
	//	workflow: {kiln: v0.1.0}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Workflow Workflow `json:"workflow,omitempty"`
}

// Package is one entry of `packages`.
//
// A package without `matrix` and `include` is in the base form: every version is built for
// every Python and every CUDA version of the run (`--python`, `--cuda`). Otherwise
// `matrix` and `include` list the rows.
type Package struct {
	// The exact versions to build (PEP 440). Quote them: YAML reads an unquoted
	// `2.10` as the number 2.1.
	//
	//	versions: ["2.8.2", "2.8.3"]
	Versions []Version `json:"versions,omitempty" list:"nonempty"`
	// Arguments as people write them for `pip wheel`, `python -m build` or `uv build`. They are split
	// into words by shell rules, but no shell runs. Each is understood for every front-end: settings
	// reach the build back-end, what kiln does anyway is dropped with a note, and what has its own
	// key in this file is an error that names the key.
	//
	//	build_args: --no-build-isolation --config-settings=cmake.args=-DUSE_CUDA=ON
	BuildArgs Text `json:"build_args,omitempty"`
	// Requirements installed into the build environment before the build. For
	// torch, the version and the index come from the row.
	//
	//	extra_deps: [torch, "numpy>=1.26", ninja, packaging]
	ExtraDeps OneOrMany[Text] `json:"extra_deps,omitempty"`
	// The modules that the smoke test imports. The default is the package name
	// with `-` replaced by `_`.
	//
	//	test_import: flash_attn
	TestImport OneOrMany[Text] `json:"test_import,omitempty"`
	// A one-sentence description for listings, release notes and the index page.
	//
	//	description: Fast and memory-efficient exact attention
	Description Text `json:"description,omitempty"`

	// Where the source code comes from. The default is the public package index.
	//
	//	source:
	//	  git: https://github.com/turboderp-org/exllamav2
	//	  ref: v0.3.2
	Source Source `json:"source,omitempty"`
	// Reads the version from a file in a local source, in place of `versions`.
	//
	//	source: {path: .}
	//	version_from: {file: exllamav2/version.py}
	VersionFrom *VersionFrom `json:"version_from,omitempty"`
	// Named architecture lists, which `arch` can refer to.
	//
	//	arch_lists:
	//	  hopper: "8.0 8.6 8.9 9.0+PTX"
	ArchLists Map[Text] `json:"arch_lists,omitempty"`
	// The GPU architectures of rows that do not set their own: a list, the name of
	// one, or a map from toolkit versions to these. The default for CUDA depends on
	// the toolkit version; the default for ROCm is the list of torch's own wheels.
	//
	//	arch_lists: {hopper: "8.0 9.0+PTX"}
	//	arch:
	//	  ">=12.8": "8.0 9.0 10.0 12.0+PTX"
	//	  default: hopper
	Arch PerToolkit[Version] `json:"arch,omitempty"`
	// The rows to build: a list of groups. A group's rows are the product of its
	// axes.
	//
	//	matrix:
	//	  - os: [ubuntu-22.04, windows-2022]
	//	    cuda: ["12.8.1"]
	//	    torch: ["2.8.0", "2.9.0"]
	//	    python: ["3.12", "3.13"]
	Matrix []Group `json:"matrix,omitempty" list:"nonempty"`
	// Removes rows from all groups. A row is removed if it matches all keys of one
	// entry.
	//
	//	exclude:
	//	  - {os: windows-2022, python: ">=3.13"}
	Exclude []Match `json:"exclude,omitempty"`
	// Single rows, added after those of the groups. `exclude` does not apply to them.
	//
	//	include:
	//	  - {kind: sdist, os: ubuntu-22.04, python: "3.11"}
	Include []Single `json:"include,omitempty"`
	// The template of the build tag. The default is `{toolkit_tag}-torch{torch}` for
	// rows with a toolkit and no tag for other rows; an empty string turns the tag
	// off. A part between hyphens is dropped if a value in it is empty. File names
	// contain the normalized form, with dots in place of hyphens.
	//
	//	local_version: "cu{cuda_major}torch{torch_minor}cxx11abi{cxx11abi}"
	LocalVersion Text `json:"local_version,omitempty"`
	// The Python and ABI tags of the wheels, if they are not those of the
	// interpreter. Packages that use the limited API need this.
	//
	//	wheel_tag: cp39-abi3
	WheelTag Text `json:"wheel_tag,omitempty"`
	// What becomes of a wheel after the build. With `auto`, libraries that no system promises are
	// copied into it: on Linux by auditwheel, on Windows by delvewheel. On Linux it gets the oldest
	// manylinux tag that the audit proves, or the musllinux tag if it is for musl. What torch, CUDA and
	// the driver bring stays outside. The default is `off`: the wheel stays as it was built.
	//
	//	repair: auto
	Repair Repair `json:"repair,omitempty"`
	// Environment variables of the build. Values can contain the row's values in
	// braces and can depend on the toolkit version. Write `{{` for a literal `{`.
	//
	//	env:
	//	  FLASH_ATTENTION_FORCE_BUILD: "TRUE"
	//	  BUILD_TARGET: "{toolkit}"
	//	  NVCC_APPEND_FLAGS: {">=12.8": "-compress-mode=size", default: ""}
	Env Map[PerToolkit[Scalar]] `json:"env,omitempty"`
	// The container image to build in: one for all rows, or one per toolkit.
	//
	//	image:
	//	  cuda: "nvidia/cuda:{cuda}-devel-ubuntu22.04"
	//	  default: "python:{python}-slim"
	Image PerToolkit[Text] `json:"image,omitempty"`
	// Commands that prepare the image, for example to install a library. Each command is
	// split into words by shell rules and runs as root with network access, once for all
	// rows with the same image and commands. The test image is prepared too if it is the
	// same image, or if it has no Python for the row otherwise.
	//
	//	image_setup:
	//	  - apt-get update
	//	  - apt-get install -y libnuma-dev
	ImageSetup OneOrMany[Text] `json:"image_setup,omitempty"`
	// Commands that run before the front-end, in the folder of the source and in the environment of
	// the build, for example to generate code. Each command is split into words by shell rules. The
	// network is off unless `build.network` is set.
	//
	//	before_build: python generate.py --arch "{arch}"
	BeforeBuild OneOrMany[Text] `json:"before_build,omitempty"`
	// Commands that run after the front-end, likewise. `KILN_OUT` is the folder of the files
	// that it made.
	//
	//	after_build: "sh -c 'strip --strip-debug build/lib*/*.so'"
	AfterBuild OneOrMany[Text] `json:"after_build,omitempty"`
	// Commands that run in the environment of the test, after the wheel was installed and
	// before anything of it is imported, in the folder of `test.files`.
	//
	//	before_test: python tests/make_data.py
	BeforeTest OneOrMany[Text] `json:"before_test,omitempty"`
	// Which Python rows are built and tested with.
	//
	//	python: {source: managed}
	Python Python `json:"python,omitempty"`
	// Where torch comes from. The default is PyTorch's index for the row's toolkit.
	//
	//	torch_source: {path: ./torch-wheels}
	TorchSource TorchSource `json:"torch_source,omitempty"`
	// How the wheel is built.
	//
	//	build: {frontend: build, isolation: false}
	Build Build `json:"build,omitempty"`
	// How the finished files are tested: a map, or one word for its `kind`.
	//
	//	test: {expressions: ["exllamav2.__version__"]}
	Test Test `json:"test,omitempty"`
	// The severity of audit findings, by rule id: `error` (fails the row), `warning`,
	// `note` or `off`. See docs/audit.md for the rules.
	//
	//	audit: {arch-extra: error, run-path: note}
	Audit Map[AuditSeverity] `json:"audit,omitempty"`
	// Limits and estimates for one build.
	//
	//	resources: {memory_per_job: 5 GiB, jobs: 4}
	Resources Resources `json:"resources,omitempty"`
	// Which rows need no compiler, because the wheel of another row serves them.
	//
	//	reuse: {torch: import}
	Reuse Reuse `json:"reuse,omitempty"`
	// Which torch the wheel's metadata requires: `exact` (the torch it was built
	// with, torch==2.9.0), `minor` (torch==2.9.*), or `any`, the default, which
	// leaves the metadata unchanged.
	//
	//	runtime_torch: minor
	RuntimeTorch RuntimeTorch `json:"runtime_torch,omitempty"`
}

// Source says where the source code of a package comes from. At most one of `index`, `git`,
// `path` and `sdist` can be set; without any, it is the public package index.
type Source struct {
	// The URL of a package index (PEP 503) other than the public one. Credentials in this and in
	// the other URLs of `source` are used and never written down.
	//
	//	index: https://mirror.example/simple/
	Index Text `json:"index,omitempty"`
	// The URL of a git repository. Requires `ref`.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: v2.8.3
	Git Text `json:"git,omitempty"`
	// The tag, branch or commit of `git`. It can contain `{version}`.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: "v{version}"
	Ref Text `json:"ref,omitempty"`
	// Whether the submodules of `git` are fetched too. The default is true.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: v2.8.3
	//	submodules: false
	Submodules Bool `json:"submodules,omitempty"`
	// A folder on this machine, relative to packages.yml.
	//
	//	path: .
	Path Text `json:"path,omitempty"`
	// The URL or path of an sdist. Requires `sha256`.
	//
	//	sdist: https://mirror.example/demo-1.0.tar.gz
	//	sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	Sdist Text `json:"sdist,omitempty"`
	// The SHA-256 of `sdist`, as 64 hexadecimal digits.
	//
	//	sdist: demo-1.0.tar.gz
	//	sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	SHA256 Text `json:"sha256,omitempty"`

	place
}

// TorchSource says where torch comes from. At most one of its keys can be set.
type TorchSource struct {
	// The URL of a package index (PEP 503). `{torch_index}` is the row's toolkit as PyTorch's
	// index writes it: cu128, rocm6.4 or cpu.
	//
	//	index: https://mirror.example/whl/{torch_index}
	Index Text `json:"index,omitempty"`
	// A folder of wheels, relative to packages.yml.
	//
	//	path: ./torch-wheels
	Path Text `json:"path,omitempty"`
	// Whether to use the torch that the environment's Python already has, for
	// example from a Linux distribution. Its version must be the row's.
	//
	//	system: true
	System Bool `json:"system,omitempty"`

	place
}

// Reuse says which rows are proven instead of compiled: rows that differ in nothing but torch from
// one that is built already, if the audit of its wheel finds all names and equal layouts in their
// torch. The wheel is then installed and tested with that torch; if the test fails, the row is
// compiled. The metadata must not be tied to one torch, so `runtime_torch` must be `any`.
type Reuse struct {
	// How a wheel is proven to work with another torch: `import` loads all its modules, `tests` runs
	// the whole test of the package.
	//
	//	torch: import
	Torch ReuseProof `json:"torch"`

	place
}

// VersionFrom reads the version from a file in the source. The source must be a
// local folder (`source: {path: …}`), because planning downloads nothing.
type VersionFrom struct {
	// The file, relative to the source.
	//
	//	file: exllamav2/version.py
	File Text `json:"file"`
	// A regular expression (RE2 syntax, matched line by line) whose first group
	// is the version. The default matches `__version__ = "…"` and `version = "…"`.
	//
	//	file: exllamav2/version.py
	//	pattern: '__version__ = "(\d+\.[\d.]+(?:dev\d+)?)"'
	Pattern Text `json:"pattern,omitempty"`
}

// Group is a product of axes, with settings that apply to all its rows.
//
// The order of rows is fixed: version varies slowest, then os, toolkit, torch, custom
// axes, and Python varies fastest, which keeps rows that share compiled code together.
// Custom axes can be used wherever the built-in ones can.
type Group struct {
	// The kind of row; see `include`.
	//
	//	kind: wheel
	Kind Kind `json:"kind,omitempty"`
	// The package versions of this group. The default is all of them.
	//
	//	version: ["2.8.3"]
	Version OneOrMany[Version] `json:"version,omitempty" list:"nonempty"`
	// The operating systems, by the names that hosted CI uses. The default is
	// `ubuntu-22.04`.
	//
	//	os: [ubuntu-22.04, windows-2022]
	OS OneOrMany[Text] `json:"os,omitempty" list:"nonempty"`
	// The Python versions; a `t` at the end means free-threaded. The default is the
	// list of the run.
	//
	//	python: ["3.12", "3.13", "3.13t"]
	Python PythonAxis `json:"python,omitempty" list:"nonempty"`
	// The CUDA toolkit versions. A group without `cuda` and `rocm` has no toolkit.
	//
	//	cuda: ["12.6.3", "12.8.1"]
	CUDA OneOrMany[Version] `json:"cuda,omitempty" list:"nonempty"`
	// The ROCm versions. A group cannot have both `cuda` and `rocm`.
	//
	//	rocm: ["6.3", "6.4"]
	ROCm OneOrMany[Version] `json:"rocm,omitempty" list:"nonempty"`
	// The torch versions.
	//
	//	torch: ["2.8.0", "2.9.0"]
	Torch TorchAxis `json:"torch,omitempty" list:"nonempty"`
	// Custom axes, by name.
	//
	//	axes:
	//	  blas: [mkl, openblas]
	Axes Map[OneOrMany[Text]] `json:"axes,omitempty"`
	// Axes that advance together instead of being multiplied. They must have the
	// same number of values. A list of lists sets several such groups of axes.
	//
	//	torch: ["2.7.0", "2.9.0"]
	//	cuda: ["12.6.3", "12.8.1"]
	//	zip: [torch, cuda]
	Zip ZipSets `json:"zip,omitempty"`
	// Removes rows from this group.
	//
	//	python: ["3.12", "3.13"]
	//	torch: ["2.4.0", "2.5.0"]
	//	exclude:
	//	  - {python: "3.13", torch: "2.4"}
	Exclude []Match `json:"exclude,omitempty"`

	Shared
	place
}

// Single is one row of `include`. It has the keys of a group, with one value each.
type Single struct {
	// `wheel`, the default, or `sdist`: a source distribution and the pure wheel
	// made from it, without a toolkit or a build tag; without the wheel if `wheel_tag`
	// is `none`.
	//
	//	kind: sdist
	//	python: "3.11"
	Kind Kind `json:"kind,omitempty"`
	// The package version. The default is every version of the package.
	//
	//	version: "2.8.3"
	Version Version `json:"version,omitempty"`
	// The operating system. The default is `ubuntu-22.04`.
	//
	//	os: ubuntu-22.04
	OS Text `json:"os,omitempty"`
	// The Python version.
	//
	//	python: "3.12"
	Python PythonAxis `json:"python"`
	// The CUDA toolkit version.
	//
	//	cuda: "12.1.0"
	CUDA Version `json:"cuda,omitempty"`
	// The ROCm version.
	//
	//	rocm: "6.4"
	ROCm Version `json:"rocm,omitempty"`
	// The torch version.
	//
	//	torch: "2.2.2"
	Torch TorchAxis `json:"torch,omitempty"`
	// The values of custom axes.
	//
	//	axes: {blas: mkl}
	Axes Map[Text] `json:"axes,omitempty"`

	Shared
	place
}

// TorchAxis is the torch versions of rows, or one row for a release and all later ones, as a map.
//
// Such a row is built with that release and uses only libtorch's stable ABI: `TORCH_TARGET_VERSION`
// is defined, the build tag has no torch in it, the metadata require `torch>=2.10`, and the audit
// refuses the wheel if it uses any other name of torch.
type TorchAxis struct {
	// The first torch release that the wheel is for.
	//
	//	stable: "2.10"
	Stable Version `json:"stable"`

	OneOrMany[Version]
	place
}

// PythonAxis is the Python versions of rows, or one row for a version and all later ones, as a map.
//
// Such a row is built with that Python and uses only Python's stable ABI: `Py_LIMITED_API` is
// defined, setuptools and scikit-build-core are told the tag (`cp310-abi3`), and the audit refuses
// the wheel if it uses any other name of Python.
type PythonAxis struct {
	// The first Python version that the wheel is for.
	//
	//	abi3: "3.10"
	ABI3 Version `json:"abi3"`

	OneOrMany[Version]
	place
}

// Shared has the settings of a package that groups and single rows can override.
type Shared struct {
	// The GPU architectures: a list, or the name of one of `arch_lists`.
	//
	//	arch: "8.0 8.6 9.0+PTX"
	Arch PerToolkit[Version] `json:"arch,omitempty"`
	// Variables in addition to the package's. These take precedence.
	//
	//	env: {MAX_JOBS: 2}
	Env Map[PerToolkit[Scalar]] `json:"env,omitempty"`
	// The container image to build in.
	//
	//	cuda: "12.8.1"
	//	image: "nvidia/cuda:{cuda}-devel-rockylinux8"
	Image PerToolkit[Text] `json:"image,omitempty"`
	// Commands that prepare the image, in place of the package's.
	//
	//	image_setup: [apk add python3-dev]
	ImageSetup OneOrMany[Text] `json:"image_setup,omitempty"`
	// Commands before the front-end, in place of the package's.
	//
	//	before_build: [python generate.py]
	BeforeBuild OneOrMany[Text] `json:"before_build,omitempty"`
	// Commands after the front-end, in place of the package's.
	//
	//	after_build: ls build
	AfterBuild OneOrMany[Text] `json:"after_build,omitempty"`
	// Commands before the test, in place of the package's.
	//
	//	before_test: python tests/make_data.py
	BeforeTest OneOrMany[Text] `json:"before_test,omitempty"`
	// Where torch comes from.
	//
	//	torch_source: {system: true}
	TorchSource TorchSource `json:"torch_source,omitempty"`
	// Arguments for the wheel builder, in place of the package's.
	//
	//	build_args: --verbose
	BuildArgs Text `json:"build_args,omitempty"`
	// Modules that the test of these rows imports, in place of the package's.
	//
	//	test_import: demo.cpu
	TestImport OneOrMany[Text] `json:"test_import,omitempty"`
	// How these rows are tested; what is not set here comes from the package.
	//
	//	test: none
	Test Test `json:"test,omitempty"`
	// Requirements of the build environment, in addition to the package's.
	//
	//	extra_deps: [nvidia-cuda-nvcc]
	ExtraDeps OneOrMany[Text] `json:"extra_deps,omitempty"`
	// The wheel platform tag, for an `os` that kiln does not know.
	//
	//	os: my-own-runner
	//	platform: linux_aarch64
	Platform Text `json:"platform,omitempty"`
	// The template of the build tag of these rows.
	//
	//	local_version: "cpu"
	LocalVersion Text `json:"local_version,omitempty"`
	// The Python and ABI tags of these wheels; `none` in a row of kind sdist makes the
	// source distribution alone.
	//
	//	wheel_tag: py3-none
	WheelTag Text `json:"wheel_tag,omitempty"`
	// What becomes of these wheels after the build, in place of the package's.
	//
	//	repair: "off"
	Repair Repair `json:"repair,omitempty"`
	// The rows whose native libraries these wheels contain too, as an expression of `--select`: for a
	// package that has a library for each toolkit in one wheel. Rows of the same version, platform and
	// tags are meant. They are built first; their files are added to the wheel of this row, which keeps
	// its own metadata. A file that two rows have with different bytes is an error. `kiln publish`
	// leaves the merged rows out. In the hosted workflow, where every row has a job of its own, such a
	// row cannot be built.
	//
	//	merge: cuda
	Merge Text `json:"merge,omitempty"`
	// Limits and estimates for a build of these rows. Keys that are not set here
	// come from the package.
	//
	//	resources: {jobs: 1}
	Resources Resources `json:"resources,omitempty"`
}

// Match is one entry of `exclude`. A row matches if it matches every key of the entry. A
// value is a pattern, or a list of patterns of which one must match. A pattern is an exact
// value, a version prefix (`"12.8"` matches every 12.8.x), a range (`">=2.5,<2.7"`) or,
// for names, a text with `*`.
type Match struct {
	// A pattern for the kind of row.
	//
	//	kind: sdist
	Kind OneOrMany[Text] `json:"kind,omitempty" list:"nonempty"`
	// A pattern for the package version.
	//
	//	version: "<2.8"
	Version OneOrMany[Version] `json:"version,omitempty" list:"nonempty"`
	// A pattern for the operating system.
	//
	//	os: windows-*
	OS OneOrMany[Text] `json:"os,omitempty" list:"nonempty"`
	// A pattern for the Python version.
	//
	//	python: ["3.10", ">=3.13"]
	Python OneOrMany[Version] `json:"python,omitempty" list:"nonempty"`
	// A pattern for the CUDA version. Rows without CUDA never match.
	//
	//	cuda: "<12"
	CUDA OneOrMany[Version] `json:"cuda,omitempty" list:"nonempty"`
	// A pattern for the ROCm version. Rows without ROCm never match.
	//
	//	rocm: "5.6"
	ROCm OneOrMany[Version] `json:"rocm,omitempty" list:"nonempty"`
	// A pattern for the torch version.
	//
	//	torch: ">=2.5,<2.7"
	Torch OneOrMany[Version] `json:"torch,omitempty" list:"nonempty"`
	// Patterns for custom axes.
	//
	//	axes: {blas: mkl}
	Axes Map[OneOrMany[Text]] `json:"axes,omitempty"`

	place
}

// Python says which Python rows are built and tested with.
type Python struct {
	// `image` uses only the Python of the image, or of the machine; `managed` uses only
	// one that kiln brings, the same in all images. The default is the image's Python
	// where it has one, and otherwise a managed one.
	//
	//	source: managed
	Source PythonSource `json:"source,omitempty"`
}

// Build says how the wheel is built.
type Build struct {
	// The build front-end: `build` (the default), `pip` or `uv`.
	//
	//	frontend: uv
	Frontend Frontend `json:"frontend,omitempty"`
	// Whether the front-end makes an isolated environment. The default is false,
	// because an isolated environment would contain another torch.
	//
	//	isolation: false
	Isolation Bool `json:"isolation,omitempty"`
	// Whether the build can use the network. The default is false: requirements are
	// installed before the build, and a build that downloads binaries fails.
	//
	//	network: true
	Network Bool `json:"network,omitempty"`
	// Settings for the build back-end (PEP 517). Values can contain the row's values
	// in braces.
	//
	//	config_settings: {"--build-option": "--verbose"}
	ConfigSettings Map[OneOrMany[Text]] `json:"config_settings,omitempty"`
	// What to do if the CUDA toolkit and torch's CUDA have different major versions:
	// `strict`, the default, keeps PyTorch's check, which fails the build; `bypass`
	// disables the check and notes that in the build record. The two can only differ
	// with a `torch_source` that names a torch of another CUDA version.
	//
	//	cuda_check: bypass
	CUDACheck CUDACheck `json:"cuda_check,omitempty"`
	// Text replacements in the source before the build. A patch that changes nothing
	// fails the row.
	//
	//	patches:
	//	  - {file: setup.py, find: "-O2", replace: "-O3"}
	Patches []Patch `json:"patches,omitempty"`
}

// Patch replaces text in one source file.
type Patch struct {
	// The file, relative to the source.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: "-O3"
	File Text `json:"file"`
	// The exact text to find.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: "-O3"
	Find Text `json:"find"`
	// The replacement.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: ""
	Replace Text `json:"replace"`
	// The exact number of replacements. The default is one or more.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: "-O3"
	//	count: 2
	Count Int `json:"count,omitempty"`
}

// Test says how the finished files of a row are tested. It is a map, or one word for its `kind`.
type Test struct {
	// What the test does. `import`, for wheels the default, installs the wheel with its requirements
	// in an environment without compilers and imports `test_import` and every native module.
	// `install` stops before the imports, for a package that compiles itself at its first import.
	// `sdist`, for sdist rows the default, reads the source distribution whole, compares its metadata
	// with those of the wheel that was built from it, and installs that wheel. `none` tests nothing:
	// the record says so, and `kiln publish` needs `untested: true`.
	//
	//	kind: install
	Kind TestKind `json:"kind,omitempty"`
	// Python expressions that must evaluate without an error, after the imports.
	//
	//	expressions: ["flash_attn.flash_attn_func"]
	Expressions OneOrMany[Text] `json:"expressions,omitempty"`
	// Commands that must succeed, after the imports and expressions, for example pytest. They run
	// in a folder that has `files` and nothing else, so that the installed package is tested.
	//
	//	command: pytest -x tests
	//	requires: pytest
	//	files: tests
	Command OneOrMany[Text] `json:"command,omitempty"`
	// Files and folders of the source that the commands need; `*` is allowed.
	//
	//	files: [tests, pytest.ini]
	Files OneOrMany[Text] `json:"files,omitempty"`
	// Extras with which the wheel is installed.
	//
	//	extras: test
	Extras OneOrMany[Text] `json:"extras,omitempty"`
	// Additional requirements of the test environment.
	//
	//	requires: [numpy, einops]
	Requires OneOrMany[Text] `json:"requires,omitempty"`
	// Whether the test needs a GPU. Without a GPU it is reported as not run.
	//
	//	requires_gpu: true
	RequiresGPU Bool `json:"requires_gpu,omitempty"`
	// The container image to test in. It needs Python but no compiler. The default
	// is the image of the build, with `-devel` replaced by `-runtime`.
	//
	//	image: {cuda: "nvidia/cuda:{cuda}-runtime-ubuntu22.04", default: "python:{python}-slim"}
	Image PerToolkit[Text] `json:"image,omitempty"`
	// The time limit of the test. The default is 10m.
	//
	//	timeout: 5m
	Timeout Duration `json:"timeout,omitempty"`

	place
}

// Resources has limits and estimates for one build. kiln learns keys that are not set from
// earlier builds.
type Resources struct {
	// The memory that one compiler call needs.
	//
	//	memory_per_job: 5 GiB
	MemoryPerJob Size `json:"memory_per_job,omitempty"`
	// The maximum number of compiler calls at a time.
	//
	//	jobs: 4
	Jobs Int `json:"jobs,omitempty"`
	// The number of threads in one nvcc call. Each needs memory of its own.
	//
	//	nvcc_threads: 2
	NVCCThreads Int `json:"nvcc_threads,omitempty"`
	// The disk space that one build needs.
	//
	//	disk: 20 GiB
	Disk Size `json:"disk,omitempty"`
	// The time limit of one build.
	//
	//	wall_time: 2h
	WallTime Duration `json:"wall_time,omitempty"`
}

// Cache configures the compile cache that machines share.
type Cache struct {
	// The URL of the cache (http, https or redis), followed by ccache's attributes, each after a
	// `|`. The user name, the password and the token come from KILN_CACHE_USER,
	// KILN_CACHE_PASSWORD and KILN_CACHE_TOKEN, never from this file. KILN_CACHE_REMOTE overrides
	// this key, and `kiln build --cache-remote` overrides both.
	//
	//	remote: "https://cache.example.org/kiln|layout=bazel"
	Remote Text `json:"remote,omitempty"`

	place
}

// Publish says where and how finished files are published.
type Publish struct {
	// The template of release tags. It can contain `{package}`, `{version}`, `{date}`
	// (such as 2026-08-01) and `{counter}`, the number of the release on that day,
	// starting at 1. The default is `v{version}`.
	//
	//	tag: "v{date}.{counter}"
	Tag Text `json:"tag,omitempty"`
	// The template of release titles. The default is `{package} {version}`.
	//
	//	title: "{version}"
	Title Text `json:"title,omitempty"`
	// The target of `kiln publish` without `--to`. Required if there are several
	// targets.
	//
	//	to: release
	//	targets: {release: {github: octo/wheels}, here: {dir: public}}
	To Text `json:"to,omitempty"`
	// The targets that files can be published to, by names of your choice.
	//
	//	targets:
	//	  release: {github: octo/wheels}
	//	  bucket: {s3: wheels, endpoint: "https://s3.example.org", url: "https://wheels.example.org/"}
	Targets Map[PublishTarget] `json:"targets,omitempty"`
	// The package index that is updated after a release.
	//
	//	index: {dir: site}
	Index PublishIndex `json:"index,omitempty"`
	// Which releases `kiln publish --prune` keeps.
	//
	//	keep: {days: 90, releases: 5}
	Keep Keep `json:"keep,omitempty"`
	// Whether to publish files whose test could not run for lack of a GPU. The
	// default is false.
	//
	//	untested: true
	Untested Bool `json:"untested,omitempty"`

	place
}

// PublishTarget is one target. It has exactly one of `github`, `dir`, `s3`, `kiln` and `pypi`.
type PublishTarget struct {
	// A repository on GitHub, whose releases get the files. The token comes from
	// GITHUB_TOKEN.
	//
	//	github: octo/wheels
	GitHub Text `json:"github,omitempty"`
	// A folder, relative to packages.yml.
	//
	//	dir: public
	Dir Text `json:"dir,omitempty"`
	// A bucket in an S3-compatible store. The credentials come from AWS_ACCESS_KEY_ID
	// and AWS_SECRET_ACCESS_KEY.
	//
	//	s3: wheels
	S3 Text `json:"s3,omitempty"`
	// The URL of a kiln server. The token comes from KILN_TOKEN, or from the URL.
	//
	//	kiln: "https://wheels.example.org/"
	Kiln Text `json:"kiln,omitempty"`
	// `pypi`, `testpypi`, or the URL that another index takes uploads at; `url` is then that
	// of the index. The token comes from KILN_PYPI_TOKEN, or by trusted publishing.
	//
	//	pypi: testpypi
	PyPI Text `json:"pypi,omitempty"`
	// The URL of the API of a GitHub Enterprise server, or of an S3-compatible store. The
	// defaults are GitHub's and Amazon's.
	//
	//	s3: wheels
	//	endpoint: "https://s3.example.org"
	Endpoint Text `json:"endpoint,omitempty"`
	// The region of the bucket. By default kiln detects it.
	//
	//	s3: wheels
	//	region: eu-central-1
	Region Text `json:"region,omitempty"`
	// The folder in the bucket.
	//
	//	s3: wheels
	//	prefix: public/cuda
	Prefix Text `json:"prefix,omitempty"`
	// The public URL of the folder or bucket, for links in the index.
	//
	//	dir: public
	//	url: "https://wheels.example.org/"
	URL Text `json:"url,omitempty"`
	// Whether releases on GitHub stay drafts. The default is false.
	//
	//	github: octo/wheels
	//	draft: true
	Draft Bool `json:"draft,omitempty"`
	// Whether releases on GitHub are marked as pre-releases. The default is false.
	//
	//	github: octo/wheels
	//	prerelease: true
	Prerelease Bool `json:"prerelease,omitempty"`

	place
}

// PublishIndex configures the package index of published files.
type PublishIndex struct {
	// The folder of the index, relative to packages.yml.
	//
	//	dir: site
	Dir Text `json:"dir,omitempty"`
	// The combination of toolkit and torch that `/simple/` shows for projects with
	// several.
	//
	//	dir: site
	//	default: cu128/torch2.9
	Default Text `json:"default,omitempty"`
	// A branch to push the index to, as a single commit without history.
	//
	//	dir: site
	//	branch: gh-pages
	Branch Text `json:"branch,omitempty"`
	// The git remote of `branch`. The default is `origin`.
	//
	//	dir: site
	//	branch: gh-pages
	//	remote: origin
	Remote Text `json:"remote,omitempty"`

	place
}

// Keep says which published files are kept. Files older than `days` are removed, and so are files
// of releases older than the newest `releases`. The newest file of each row is always kept.
type Keep struct {
	// The age in days up to which files are kept. The default is no limit.
	//
	//	days: 90
	Days Int `json:"days,omitempty"`
	// The number of newest releases to keep. The default is no limit.
	//
	//	releases: 5
	Releases Int `json:"releases,omitempty"`
}

// WorkflowKiln says how the jobs of the hosted workflow get kiln. It is a map, or one word for
// its `version`.
type WorkflowKiln struct {
	// A release of kiln, whose program is fetched, or `path` if the runners have kiln. The hash of
	// the program that makes the workflow is known; those of others are in the release's SHA256SUMS.
	//
	//	version: v0.1.0
	//	sha256: {linux-amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
	Version Text `json:"version,omitempty"`
	// The wheel of kiln, by its exact version. pip installs it.
	//
	//	wheel: kiln-build==0.1.0
	//	sha256: {linux-amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
	Wheel Text `json:"wheel,omitempty"`
	// The package index that has the wheel.
	//
	//	wheel: kiln-build==0.1.0
	//	index: https://wheels.example.org/simple/
	//	sha256: {linux-amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
	Index Text `json:"index,omitempty"`
	// The address of the program. `{platform}` stands for `linux-amd64`, `linux-arm64` or
	// `windows-amd64`, and `{exe}` for `.exe` on Windows and for nothing elsewhere.
	//
	//	url: "https://example.org/kiln/v0.1.0/kiln-{platform}"
	//	sha256: {linux-amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
	URL Text `json:"url,omitempty"`
	// The SHA-256 of the program or the wheel for each platform that the workflow uses.
	//
	//	url: "https://example.org/kiln/v0.1.0/kiln-{platform}"
	//	sha256: {linux-amd64: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
	SHA256 Map[Text] `json:"sha256,omitempty"`

	place
}

// Workflow configures the generated hosted-CI workflow.
type Workflow struct {
	// The name of the workflow. The default is `wheels`.
	//
	//	name: Build wheels and release
	Name Text `json:"name,omitempty"`
	// How jobs get kiln, each time checked by SHA-256: a release, `path` if the runners have it, or a
	// map with an address or a wheel, and the hashes. The default is the release that made the workflow.
	//
	//	kiln: v0.1.0
	Kiln WorkflowKiln `json:"kiln,omitempty"`
	// Which rows the workflow builds, as an expression of `kiln plan --select`. The default is all.
	// A row that hosted runners cannot build is an error of `kiln workflow github`; this leaves it out.
	//
	//	rows: "os != windows-2022 and toolkit != rocm"
	Rows Text `json:"rows,omitempty"`
	// How many rows are built at the same time, at most. The default is what the host allows. The run's
	// input `max_parallel` replaces it.
	//
	//	max_parallel: 4
	MaxParallel Int `json:"max_parallel,omitempty"`
	// Which runs publish: `dispatch` is one started by hand with `release` set to 1, `tag` one for a
	// version tag, `push` one for a change of packages.yml on the main branch. `push` and `tag` also
	// start the workflow, as `triggers` does. The default is `dispatch`, and `tag` if it is a trigger.
	//
	//	release_on: [push, dispatch]
	ReleaseOn OneOrMany[ReleaseOn] `json:"release_on,omitempty" list:"nonempty"`
	// Whether build jobs keep their compile cache with the host's cache action, so that the next run
	// compiles only what changed. The default is true, unless `cache.remote` names a cache: then jobs
	// get the secrets KILN_CACHE_USER, KILN_CACHE_PASSWORD and KILN_CACHE_TOKEN.
	//
	//	cache: false
	Cache Bool `json:"cache,omitempty"`
	// Whether released files get an attestation of the host, which `gh attestation verify` checks. The
	// default is false.
	//
	//	attest: true
	Attest Bool `json:"attest,omitempty"`
	// The name of the secret that holds the key with which provenance is signed. The default is none.
	//
	//	sign_key: KILN_SIGN_KEY
	SignKey Text `json:"sign_key,omitempty"`
	// The runner labels for each `os`. The default is the name itself if GitHub hosts such runners,
	// otherwise the newest hosted system of the same kind.
	//
	//	runners:
	//	  debian-12: [self-hosted, debian]
	Runners Map[OneOrMany[Text]] `json:"runners,omitempty"`
	// Where rows are built, as in `kiln build --runner`: `docker`, `podman` or `host`. The default
	// is docker for Linux rows with an image or a CUDA toolkit, and host for other rows.
	//
	//	sandbox: host
	Sandbox Sandbox `json:"sandbox,omitempty"`
	// The labels of a runner with a GPU. Every wheel is tested there again.
	//
	//	gpu_runner: [self-hosted, gpu]
	GPURunner OneOrMany[Text] `json:"gpu_runner,omitempty"`
	// Actions to use in place of those that kiln pins, each by commit hash.
	//
	//	actions:
	//	  checkout: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1
	Actions Map[Text] `json:"actions,omitempty"`
	// What starts the workflow, besides a manual start: `push` (a change of packages.yml on the main
	// branch) or `tag` (a version tag).
	//
	//	triggers: [push, tag]
	Triggers OneOrMany[Trigger] `json:"triggers,omitempty"`
	// The main branch. The default is `main`.
	//
	//	branch: master
	Branch Text `json:"branch,omitempty"`
	// The MSVC toolset of Windows rows. The default is `14.39`.
	//
	//	msvc: "14.39"
	MSVC Version `json:"msvc,omitempty"`
	// The CUDA versions to install for Windows rows whose version is not available as component
	// archives.
	//
	//	windows_cuda: {"12.1.0": "12.1.1"}
	WindowsCUDA Map[Version] `json:"windows_cuda,omitempty"`
	// The time limit of one build job. The default is 6h.
	//
	//	timeout: 5h
	Timeout Duration `json:"timeout,omitempty"`

	place
}
