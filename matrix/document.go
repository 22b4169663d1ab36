package matrix

// The types in this file are packages.yml as written. They are the single source
// for four things: the decoder walks them by reflection, the JSON Schema and
// docs/packages-yml.md are generated from them and their comments, and the tests
// decode every indented example below. A field's comment is what its user reads.

// Document is packages.yml as a whole.
//
// It has the map `packages`; `cache` says where compiles are shared, `publish` and `workflow` are
// for what comes after the build. Keys that begin with `x-` are ignored, which gives YAML anchors a
// place to live.
type Document struct {
	// What to build, by distribution name. Names are compared as PEP 503 says:
	// `flash_attn` and `flash-attn` are the same package.
	//
	//	packages:
	//	  flash-attn:
	//	    versions: ["2.8.3"]
	Packages Map[Package] `json:"packages"`
	// Where compiled code is kept for other machines; docs/sharing.md explains it.
	//
	//	cache: {remote: "https://cache.example.org/kiln|layout=bazel"}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Cache Cache `json:"cache,omitempty"`
	// Where finished files go; docs/publish.md explains it.
	//
	//	publish:
	//	  targets: {release: {github: octo/wheels}}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Publish Publish `json:"publish,omitempty"`
	// What the generated hosted-CI workflow is made of; docs/workflow.md explains it.
	//
	//	workflow: {kiln: v0.1.0}
	//	packages: {flash-attn: {versions: ["2.8.3"]}}
	Workflow Workflow `json:"workflow,omitempty"`
}

// Package is one entry of `packages`.
//
// Without `matrix` and `include` it is in the base form: every version is built for
// every Python and every CUDA version of the run (`--python`, `--cuda`). With them
// the package says for itself which rows exist.
type Package struct {
	// Exact versions to build (PEP 440). Quote them: an unquoted `2.10` is a
	// number in YAML and would read as 2.1.
	//
	//	versions: ["2.8.2", "2.8.3"]
	Versions []Version `json:"versions,omitempty" list:"nonempty"`
	// Arguments for the wheel builder, split into words as a shell would, but
	// never given to a shell.
	//
	//	build_args: --no-build-isolation --verbose
	BuildArgs Text `json:"build_args,omitempty"`
	// Requirements installed in the build environment before the build. torch is
	// set apart: its version and its index come from the row.
	//
	//	extra_deps: [torch, "numpy>=1.26", ninja, packaging]
	ExtraDeps OneOrMany[Text] `json:"extra_deps,omitempty"`
	// Modules that the smoke test imports. The default is the package name with
	// `-` turned into `_`.
	//
	//	test_import: flash_attn
	TestImport OneOrMany[Text] `json:"test_import,omitempty"`
	// One sentence for listings, release notes and the index page.
	//
	//	description: Fast and memory-efficient exact attention
	Description Text `json:"description,omitempty"`

	// Where the code is. The default is the public package index.
	//
	//	source:
	//	  git: https://github.com/turboderp-org/exllamav2
	//	  ref: v0.3.2
	Source Source `json:"source,omitempty"`
	// Reads the version from a file of a local source instead of `versions`.
	//
	//	source: {path: .}
	//	version_from: {file: exllamav2/version.py}
	VersionFrom *VersionFrom `json:"version_from,omitempty"`
	// Named architecture lists for `arch` to refer to.
	//
	//	arch_lists:
	//	  hopper: "8.0 8.6 8.9 9.0+PTX"
	ArchLists Map[Text] `json:"arch_lists,omitempty"`
	// The GPU architectures of rows that do not say themselves: one list (or the
	// name of one), or one per toolkit version. The default depends on the CUDA
	// version; ROCm rows default to torch's own list.
	//
	//	arch_lists: {hopper: "8.0 9.0+PTX"}
	//	arch:
	//	  ">=12.8": "8.0 9.0 10.0 12.0+PTX"
	//	  default: hopper
	Arch PerToolkit[Version] `json:"arch,omitempty"`
	// The rows to build: a list of groups, each the product of its own axes.
	//
	//	matrix:
	//	  - os: [ubuntu-22.04, windows-2022]
	//	    cuda: ["12.8.1"]
	//	    torch: ["2.8.0", "2.9.0"]
	//	    python: ["3.12", "3.13"]
	Matrix []Group `json:"matrix,omitempty" list:"nonempty"`
	// Removes rows of all groups. A row is removed if it matches all keys of an
	// entry.
	//
	//	exclude:
	//	  - {os: windows-2022, python: ">=3.13"}
	Exclude []Match `json:"exclude,omitempty"`
	// Extra single rows, added after all groups; `exclude` never removes them.
	//
	//	include:
	//	  - {kind: sdist, os: ubuntu-22.04, python: "3.11"}
	Include []Single `json:"include,omitempty"`
	// Template of the build tag. The default is `{toolkit_tag}-torch{torch}` for
	// rows with a toolkit and nothing for the others; an empty text turns it off.
	// A part between hyphens is left out if a value in it is empty. File names
	// carry the normalised form, with dots for hyphens.
	//
	//	local_version: "cu{cuda_major}torch{torch_minor}cxx11abi{cxx11abi}"
	LocalVersion Text `json:"local_version,omitempty"`
	// Python and ABI tag of the wheels where they are not the interpreter's own,
	// as for packages that use the limited API.
	//
	//	wheel_tag: cp39-abi3
	WheelTag Text `json:"wheel_tag,omitempty"`
	// Variables for the build. Values may use the row's values in braces, and may
	// differ by toolkit version. Two braces stand for one.
	//
	//	env:
	//	  FLASH_ATTENTION_FORCE_BUILD: "TRUE"
	//	  BUILD_TARGET: "{toolkit}"
	//	  NVCC_APPEND_FLAGS: {">=12.8": "-compress-mode=size", default: ""}
	Env Map[PerToolkit[Scalar]] `json:"env,omitempty"`
	// The container image to build in, one for all rows or one per toolkit.
	//
	//	image:
	//	  cuda: "nvidia/cuda:{cuda}-devel-ubuntu22.04"
	//	  default: "python:{python}-slim"
	Image PerToolkit[Text] `json:"image,omitempty"`
	// Commands that complete the image before it is used, such as one that installs
	// the Python of the row. Each is split into words as a shell would, runs as root
	// with network, and once for all rows with the same image and commands.
	//
	//	image_setup:
	//	  - apt-get update
	//	  - apt-get install -y python{python}-venv python{python}-dev
	ImageSetup OneOrMany[Text] `json:"image_setup,omitempty"`
	// Where torch comes from. The default is PyTorch's own index for the row's
	// toolkit.
	//
	//	torch_source: {path: ./torch-wheels}
	TorchSource TorchSource `json:"torch_source,omitempty"`
	// How the wheel is built.
	//
	//	build: {frontend: build, isolation: false}
	Build Build `json:"build,omitempty"`
	// What the smoke test does.
	//
	//	test: {expressions: ["exllamav2.__version__"]}
	Test Test `json:"test,omitempty"`
	// How bad findings of the audit are: `error`, which fails a row, `warning`, `note`
	// or `off`, by the id of the rule. docs/audit.md lists the rules.
	//
	//	audit: {arch-extra: error, run-path: note}
	Audit Map[AuditSeverity] `json:"audit,omitempty"`
	// What one build may use.
	//
	//	resources: {memory_per_job: 5 GiB, jobs: 4}
	Resources Resources `json:"resources,omitempty"`
	// Whether the wheel's own metadata is tightened to the torch it was built
	// for: `exact` (torch==2.9.0), `minor` (torch==2.9.*) or `any`, the default,
	// which leaves it alone.
	//
	//	runtime_torch: minor
	RuntimeTorch RuntimeTorch `json:"runtime_torch,omitempty"`
}

// Source says where the code of a package is. At most one of `index`, `git`, `path`
// and `sdist` is given; none means the public package index.
type Source struct {
	// A package index other than the public one, by the address of its simple
	// page.
	//
	//	index: https://mirror.example/simple/
	Index Text `json:"index,omitempty"`
	// A git repository. Needs `ref`.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: v2.8.3
	Git Text `json:"git,omitempty"`
	// The tag, branch or commit of `git`. May use `{version}`.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: "v{version}"
	Ref Text `json:"ref,omitempty"`
	// Whether the submodules of `git` are fetched too; true if left out.
	//
	//	git: https://github.com/Dao-AILab/flash-attention
	//	ref: v2.8.3
	//	submodules: false
	Submodules Bool `json:"submodules,omitempty"`
	// A folder on this machine, relative to packages.yml.
	//
	//	path: .
	Path Text `json:"path,omitempty"`
	// The address or path of an sdist. Needs `sha256`.
	//
	//	sdist: https://mirror.example/demo-1.0.tar.gz
	//	sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	Sdist Text `json:"sdist,omitempty"`
	// The hash of `sdist`, 64 hexadecimal digits.
	//
	//	sdist: demo-1.0.tar.gz
	//	sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
	SHA256 Text `json:"sha256,omitempty"`

	place
}

// TorchSource says where torch comes from. At most one of its keys is given.
type TorchSource struct {
	// The address of a simple index. `{torch_index}` stands for the row's toolkit
	// as PyTorch's own index writes it: cu128, rocm6.4 or cpu.
	//
	//	index: https://mirror.example/whl/{torch_index}
	Index Text `json:"index,omitempty"`
	// A folder of wheels, relative to packages.yml.
	//
	//	path: ./torch-wheels
	Path Text `json:"path,omitempty"`
	// Whether the torch that the Python of the environment already has is used,
	// as with a distribution's own package. It must be the version of the row.
	//
	//	system: true
	System Bool `json:"system,omitempty"`

	place
}

// VersionFrom reads the version from a file of the source. The source must be a
// local folder (`source: {path: …}`), because planning fetches nothing.
type VersionFrom struct {
	// The file, relative to the source.
	//
	//	file: exllamav2/version.py
	File Text `json:"file"`
	// A regular expression (RE2 syntax, matched line by line) whose first group
	// is the version. The default finds `__version__ = "…"` and `version = "…"`.
	//
	//	file: exllamav2/version.py
	//	pattern: '__version__ = "(\d+\.[\d.]+(?:dev\d+)?)"'
	Pattern Text `json:"pattern,omitempty"`
}

// Group is a product of axes with settings that all its rows share.
//
// Rows come out in a fixed order: version, os, toolkit, torch, custom axes, then
// Python fastest, so that rows which share compiled code stand together. Names of
// custom axes are usable wherever the built-in ones are.
type Group struct {
	// The kind of row; see `include`.
	//
	//	kind: wheel
	Kind Kind `json:"kind,omitempty"`
	// Package versions of this group, if not all of the package.
	//
	//	version: ["2.8.3"]
	Version OneOrMany[Version] `json:"version,omitempty" list:"nonempty"`
	// Operating systems, by the names that hosted CI uses. Default `ubuntu-22.04`.
	//
	//	os: [ubuntu-22.04, windows-2022]
	OS OneOrMany[Text] `json:"os,omitempty" list:"nonempty"`
	// Python versions, with `t` for free-threaded builds. The default is the
	// list of the run.
	//
	//	python: ["3.12", "3.13", "3.13t"]
	Python OneOrMany[Version] `json:"python,omitempty" list:"nonempty"`
	// CUDA toolkit versions. A group without `cuda` and `rocm` has no toolkit.
	//
	//	cuda: ["12.6.3", "12.8.1"]
	CUDA OneOrMany[Version] `json:"cuda,omitempty" list:"nonempty"`
	// ROCm versions. A group has `cuda` or `rocm`, never both.
	//
	//	rocm: ["6.3", "6.4"]
	ROCm OneOrMany[Version] `json:"rocm,omitempty" list:"nonempty"`
	// torch versions.
	//
	//	torch: ["2.8.0", "2.9.0"]
	Torch OneOrMany[Version] `json:"torch,omitempty" list:"nonempty"`
	// Further axes of your own.
	//
	//	axes:
	//	  blas: [mkl, openblas]
	Axes Map[OneOrMany[Text]] `json:"axes,omitempty"`
	// Axes that advance together instead of multiplying. They have equally many
	// values. Several sets are given as a list of lists.
	//
	//	torch: ["2.7.0", "2.9.0"]
	//	cuda: ["12.6.3", "12.8.1"]
	//	zip: [torch, cuda]
	Zip ZipSets `json:"zip,omitempty"`
	// Removes rows of this group.
	//
	//	python: ["3.12", "3.13"]
	//	torch: ["2.4.0", "2.5.0"]
	//	exclude:
	//	  - {python: "3.13", torch: "2.4"}
	Exclude []Match `json:"exclude,omitempty"`

	Shared
	place
}

// Single is one row of `include`: the keys of a group with one value each.
type Single struct {
	// `wheel`, the default, or `sdist`: a source distribution and the pure wheel
	// made from it, without toolkit and without build tag.
	//
	//	kind: sdist
	//	python: "3.11"
	Kind Kind `json:"kind,omitempty"`
	// The package version, if the package has several.
	//
	//	version: "2.8.3"
	Version Version `json:"version,omitempty"`
	// The operating system. Default `ubuntu-22.04`.
	//
	//	os: ubuntu-22.04
	OS Text `json:"os,omitempty"`
	// The Python version.
	//
	//	python: "3.12"
	Python Version `json:"python"`
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
	Torch Version `json:"torch,omitempty"`
	// Values of custom axes.
	//
	//	axes: {blas: mkl}
	Axes Map[Text] `json:"axes,omitempty"`

	Shared
	place
}

// Shared is what groups and single rows can set for their rows in place of the
// package's own setting.
type Shared struct {
	// GPU architectures: a list, or the name of one of `arch_lists`.
	//
	//	arch: "8.0 8.6 9.0+PTX"
	Arch PerToolkit[Version] `json:"arch,omitempty"`
	// Variables added to those of the package; the same name wins here.
	//
	//	env: {MAX_JOBS: 2}
	Env Map[PerToolkit[Scalar]] `json:"env,omitempty"`
	// The container image to build in.
	//
	//	cuda: "12.8.1"
	//	image: "nvidia/cuda:{cuda}-devel-rockylinux8"
	Image PerToolkit[Text] `json:"image,omitempty"`
	// Commands that complete the image, in place of the package's.
	//
	//	image_setup: [apk add python3-dev]
	ImageSetup OneOrMany[Text] `json:"image_setup,omitempty"`
	// Where torch comes from.
	//
	//	torch_source: {system: true}
	TorchSource TorchSource `json:"torch_source,omitempty"`
	// Requirements of the build environment, besides those of the package.
	//
	//	extra_deps: [nvidia-cuda-nvcc]
	ExtraDeps OneOrMany[Text] `json:"extra_deps,omitempty"`
	// The wheel platform tag, for an `os` that kiln does not know.
	//
	//	os: my-own-runner
	//	platform: linux_aarch64
	Platform Text `json:"platform,omitempty"`
	// Template of the build tag of these rows.
	//
	//	local_version: "cpu"
	LocalVersion Text `json:"local_version,omitempty"`
	// Python and ABI tag of these wheels.
	//
	//	wheel_tag: py3-none
	WheelTag Text `json:"wheel_tag,omitempty"`
	// What a build of these rows may use; what is not set here comes from the
	// package.
	//
	//	resources: {jobs: 1}
	Resources Resources `json:"resources,omitempty"`
}

// Match is one entry of `exclude`. A row matches if every key given matches. A value
// is one pattern or a list of them (any of): an exact value, a version as precise as
// it is written (`"12.8"` is every 12.8.x), a range (`">=2.5,<2.7"`), or for names
// a text with `*`.
type Match struct {
	// Pattern for the kind of row.
	//
	//	kind: sdist
	Kind OneOrMany[Text] `json:"kind,omitempty" list:"nonempty"`
	// Pattern for the package version.
	//
	//	version: "<2.8"
	Version OneOrMany[Version] `json:"version,omitempty" list:"nonempty"`
	// Pattern for the operating system.
	//
	//	os: windows-*
	OS OneOrMany[Text] `json:"os,omitempty" list:"nonempty"`
	// Pattern for the Python version.
	//
	//	python: ["3.10", ">=3.13"]
	Python OneOrMany[Version] `json:"python,omitempty" list:"nonempty"`
	// Pattern for the CUDA version; rows without CUDA never match.
	//
	//	cuda: "<12"
	CUDA OneOrMany[Version] `json:"cuda,omitempty" list:"nonempty"`
	// Pattern for the ROCm version; rows without ROCm never match.
	//
	//	rocm: "5.6"
	ROCm OneOrMany[Version] `json:"rocm,omitempty" list:"nonempty"`
	// Pattern for the torch version.
	//
	//	torch: ">=2.5,<2.7"
	Torch OneOrMany[Version] `json:"torch,omitempty" list:"nonempty"`
	// Patterns for custom axes.
	//
	//	axes: {blas: mkl}
	Axes Map[OneOrMany[Text]] `json:"axes,omitempty"`

	place
}

// Build says how the wheel is built.
type Build struct {
	// The program that builds: `build` (the default), `pip` or `uv`.
	//
	//	frontend: uv
	Frontend Frontend `json:"frontend,omitempty"`
	// Whether the front-end makes an isolated environment. The default is false:
	// isolation would install a torch of its own.
	//
	//	isolation: false
	Isolation Bool `json:"isolation,omitempty"`
	// Whether the build may reach the network. The default is false: everything
	// it needs is installed before, and what is downloaded was not built.
	//
	//	network: true
	Network Bool `json:"network,omitempty"`
	// Settings for the build back-end (PEP 517). May use the row's values.
	//
	//	config_settings: {"--build-option": "--verbose"}
	ConfigSettings Map[OneOrMany[Text]] `json:"config_settings,omitempty"`
	// What to do when the CUDA toolkit and torch's CUDA differ in their major
	// version: `strict`, the default, lets PyTorch's builder refuse; `bypass` turns
	// its check off from outside, and the build record says so.
	//
	//	cuda_check: bypass
	CUDACheck CUDACheck `json:"cuda_check,omitempty"`
	// Changes made to the source before the build. One that changes nothing
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
	// What stands there afterwards.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: ""
	Replace Text `json:"replace"`
	// How many places must change. The default is at least one.
	//
	//	file: setup.py
	//	find: "-O2"
	//	replace: "-O3"
	//	count: 2
	Count Int `json:"count,omitempty"`
}

// Test says what the smoke test does after it has imported `test_import`.
type Test struct {
	// Python expressions that must evaluate without an error, after the imports.
	//
	//	expressions: ["flash_attn.flash_attn_func"]
	Expressions OneOrMany[Text] `json:"expressions,omitempty"`
	// Further requirements of the test environment.
	//
	//	requires: [numpy, einops]
	Requires OneOrMany[Text] `json:"requires,omitempty"`
	// Whether the test needs a GPU. Without one it is reported as not run.
	//
	//	requires_gpu: true
	RequiresGPU Bool `json:"requires_gpu,omitempty"`
	// The container image to test in. It has Python and no compiler. The default
	// is the image of the build with `-devel` turned into `-runtime`.
	//
	//	image: {cuda: "nvidia/cuda:{cuda}-runtime-ubuntu22.04", default: "python:{python}-slim"}
	Image PerToolkit[Text] `json:"image,omitempty"`
	// How long the test may take. Default 10m.
	//
	//	timeout: 5m
	Timeout Duration `json:"timeout,omitempty"`
}

// Resources says what one build may use. What is left out is learned from earlier
// builds.
type Resources struct {
	// Memory of one compiler call.
	//
	//	memory_per_job: 5 GiB
	MemoryPerJob Size `json:"memory_per_job,omitempty"`
	// Compiler calls at a time, at most.
	//
	//	jobs: 4
	Jobs Int `json:"jobs,omitempty"`
	// Threads inside one nvcc call. They multiply the memory.
	//
	//	nvcc_threads: 2
	NVCCThreads Int `json:"nvcc_threads,omitempty"`
	// Disk that one build needs.
	//
	//	disk: 20 GiB
	Disk Size `json:"disk,omitempty"`
	// How long one build may take.
	//
	//	wall_time: 2h
	WallTime Duration `json:"wall_time,omitempty"`
}

// Cache says where compiled code is kept for other machines.
type Cache struct {
	// The address of a compile cache that machines share, http, https or redis, with ccache's
	// attributes behind bars. User, password or token come from KILN_CACHE_USER,
	// KILN_CACHE_PASSWORD and KILN_CACHE_TOKEN, never from here. KILN_CACHE_REMOTE replaces the
	// address, and `kiln build --cache-remote` both.
	//
	//	remote: "https://cache.example.org/kiln|layout=bazel"
	Remote Text `json:"remote,omitempty"`

	place
}

// Publish says where finished files go.
type Publish struct {
	// Template of the tag that releases have. It may use `{package}`, `{version}`,
	// `{date}` (such as 2026-08-01) and `{counter}`, which counts the releases of a
	// day from 1. Default `v{version}`.
	//
	//	tag: "v{date}.{counter}"
	Tag Text `json:"tag,omitempty"`
	// Template of the release's title. Default `{package} {version}`.
	//
	//	title: "{version}"
	Title Text `json:"title,omitempty"`
	// The target of a `kiln publish` without `--to`. The default is the only one.
	//
	//	to: release
	//	targets: {release: {github: octo/wheels}, here: {dir: public}}
	To Text `json:"to,omitempty"`
	// The places that files can be published to, by names of your choice.
	//
	//	targets:
	//	  release: {github: octo/wheels}
	//	  bucket: {s3: wheels, endpoint: "https://s3.example.org", url: "https://wheels.example.org/"}
	Targets Map[PublishTarget] `json:"targets,omitempty"`
	// The index that is brought up to date after a release.
	//
	//	index: {dir: site}
	Index PublishIndex `json:"index,omitempty"`
	// What `kiln publish --prune` keeps.
	//
	//	keep: {days: 90, releases: 5}
	Keep Keep `json:"keep,omitempty"`
	// Whether files are published whose test could not run, as it needs a GPU. The
	// default is false.
	//
	//	untested: true
	Untested Bool `json:"untested,omitempty"`

	place
}

// PublishTarget is one place for files. It has exactly one of `github`, `dir`, `s3` and
// `kiln`.
type PublishTarget struct {
	// Releases of a repository on GitHub. The token comes from GITHUB_TOKEN.
	//
	//	github: octo/wheels
	GitHub Text `json:"github,omitempty"`
	// A folder, relative to packages.yml.
	//
	//	dir: public
	Dir Text `json:"dir,omitempty"`
	// A bucket of an S3-compatible store. The keys come from AWS_ACCESS_KEY_ID and
	// AWS_SECRET_ACCESS_KEY.
	//
	//	s3: wheels
	S3 Text `json:"s3,omitempty"`
	// The address of a kiln server. The token comes from KILN_TOKEN.
	//
	//	kiln: "https://wheels.example.org/"
	Kiln Text `json:"kiln,omitempty"`
	// The address of GitHub's API, for an installation of one's own, or of the S3-compatible
	// store. Defaults are GitHub's and Amazon's.
	//
	//	s3: wheels
	//	endpoint: "https://s3.example.org"
	Endpoint Text `json:"endpoint,omitempty"`
	// The region of a bucket. The default is found out.
	//
	//	s3: wheels
	//	region: eu-central-1
	Region Text `json:"region,omitempty"`
	// The folder in a bucket.
	//
	//	s3: wheels
	//	prefix: public/cuda
	Prefix Text `json:"prefix,omitempty"`
	// Where users find the folder or bucket, for the links of the index.
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

// PublishIndex says how the index of published files is kept.
type PublishIndex struct {
	// The folder of the index, relative to packages.yml.
	//
	//	dir: site
	Dir Text `json:"dir,omitempty"`
	// The combination that `/simple/` shows of projects with several.
	//
	//	dir: site
	//	default: cu128/torch2.9
	Default Text `json:"default,omitempty"`
	// A branch to which the index is pushed, as one commit without history.
	//
	//	dir: site
	//	branch: gh-pages
	Branch Text `json:"branch,omitempty"`
	// The git remote of `branch`. Default `origin`.
	//
	//	dir: site
	//	branch: gh-pages
	//	remote: origin
	Remote Text `json:"remote,omitempty"`

	place
}

// Keep says which published files stay. What is older than `days` goes, and so does what
// belongs to none of the newest `releases`; the newest file of each row always stays.
type Keep struct {
	// Files younger than this many days stay. The default is no limit.
	//
	//	days: 90
	Days Int `json:"days,omitempty"`
	// The files of this many newest releases stay. The default is no limit.
	//
	//	releases: 5
	Releases Int `json:"releases,omitempty"`
}

// Workflow says what the generated hosted-CI workflow is made of.
type Workflow struct {
	// Its name. Default `wheels`.
	//
	//	name: Build wheels and release
	Name Text `json:"name,omitempty"`
	// How jobs get kiln: a version to install, or `path` if the runners have it. The default is
	// the version that made the workflow.
	//
	//	kiln: v0.1.0
	Kiln Text `json:"kiln,omitempty"`
	// The labels of the runners for an `os`. The default is the name itself where GitHub hosts such
	// runners, otherwise the newest hosted system of the same kind.
	//
	//	runners:
	//	  debian-12: [self-hosted, debian]
	Runners Map[OneOrMany[Text]] `json:"runners,omitempty"`
	// Where rows are built, as in `kiln build --runner`: `docker`, `podman` or `host`. The default
	// is docker for Linux rows with an image or a CUDA toolkit, and host for the others.
	//
	//	sandbox: host
	Sandbox Sandbox `json:"sandbox,omitempty"`
	// The labels of a runner with a GPU, on which every wheel is tested once more.
	//
	//	gpu_runner: [self-hosted, gpu]
	GPURunner OneOrMany[Text] `json:"gpu_runner,omitempty"`
	// Actions other than those that kiln pins, each by the hash of a commit.
	//
	//	actions:
	//	  checkout: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1
	Actions Map[Text] `json:"actions,omitempty"`
	// What starts the workflow besides a person: `push` is a change of packages.yml on the main
	// branch, `tag` is a version tag.
	//
	//	triggers: [push, tag]
	Triggers OneOrMany[Trigger] `json:"triggers,omitempty"`
	// The main branch. Default `main`.
	//
	//	branch: master
	Branch Text `json:"branch,omitempty"`
	// The MSVC toolset of Windows rows. Default `14.39`.
	//
	//	msvc: "14.39"
	MSVC Version `json:"msvc,omitempty"`
	// CUDA versions to install for Windows rows whose own version has no archives of components.
	//
	//	windows_cuda: {"12.1.0": "12.1.1"}
	WindowsCUDA Map[Version] `json:"windows_cuda,omitempty"`
	// How long one build job may take. Default 6h.
	//
	//	timeout: 5h
	Timeout Duration `json:"timeout,omitempty"`

	place
}
