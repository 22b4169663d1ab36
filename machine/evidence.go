package machine

import (
	"slices"
	"time"
)

// The stages in which something can fail, as they stand in [Evidence.Stage].
const (
	StageFetch     = "fetch"     // source and dependencies are downloaded
	StagePrepare   = "prepare"   // the environment is made
	StagePreflight = "preflight" // tools and versions are compared with the row
	StageCompile   = "compile"   // the wheel is built
	StageCollect   = "collect"   // its result is looked for
	StageAudit     = "audit"     // the result is looked into
	StageTest      = "test"      // the result is installed and imported
	StageImport    = "import"    // a user imports the result
)

// Evidence is all that is known of a failure. Every field may be left out: what is
// not known confirms nothing and contradicts nothing.
type Evidence struct {
	Stage string // one of the Stage constants; empty matches every stage

	// How the command ended.
	Argv      []string
	ExitCode  int    // -1 when ended by a signal or not started
	Signal    string // "SIGKILL"…
	OOMKilled bool   // the memory limit was hit, as the kernel says
	TimedOut  bool   // kiln ended it at WallLimit
	Lost      bool   // the worker vanished: nothing is known of the end
	// LogLines is its output, or the relevant end of it, without line ends. Escape
	// sequences for colors are ignored.
	LogLines []string

	// Limits and measurements; zero means unknown.
	MemoryLimitBytes, PeakMemoryBytes int64
	FreeDiskBytes                     int64 // where the build writes, after the failure
	NeedDiskBytes                     int64 // what the row is known to need
	Jobs, NVCCThreads                 int
	WallLimit                         time.Duration
	// NetworkOff says that the command was cut off from the network on purpose.
	NetworkOff bool

	// What was asked for.
	Image        string // container image
	Python       string // "3.12"
	CUDA, ROCm   string // "12.8.1"
	Torch        string // "2.9.0"
	Arch         string // arch list as written
	OS           string // "linux", "windows", "darwin"; empty means linux
	Distribution string // ID of os-release, with those of ID_LIKE after it: "ubuntu debian"
	// Root says that commands of the fix need no sudo.
	Root bool
	// Requirements are the lines of build-system.requires and of the row's own
	// extra requirements.
	Requirements []string
	// Env are the variables that the author of the row set.
	Env map[string]string

	// What preflight or the probes found.
	ToolkitFound   string   // version of nvcc: "12.4"
	TorchFound     string   // torch.__version__: "2.6.0+cu124"
	TorchCUDAFound string   // torch.version.cuda: "12.4"; "none" for a build without
	TorchABIFound  string   // "0" or "1", _GLIBCXX_USE_CXX11_ABI
	GLIBCFound     string   // "2.31"
	DriverFound    string   // version of the NVIDIA driver; "none" if there is none
	GPUsFound      []string // compute capabilities: "8.6"
	// ToolsMissing are the tools that a probe did not find: "c++", "nvcc",
	// "ninja", "python-headers", "hipcc", "cl".
	ToolsMissing []string
	// ToolsFound are paths of tools that are there but perhaps not on PATH, by name.
	ToolsFound map[string]string

	// What came out.
	Outputs       []string // base names of the files in the output folder; nil means not looked at
	WantOutputs   []string // the names that were expected
	Native        bool     // the row must contain compiled code
	CompileCalls  int      // compiler calls seen by the launcher; -1 means none were made, 0 unknown
	VersionFound  string   // version in the built metadata, without its local part
	VersionWanted string   // version of the row
	ArchFound     string   // arch list found in the binaries
	// ModuleFile is where the imported extension lies, relative to site-packages;
	// a path that begins with "/" or ".." is outside of it.
	ModuleFile string

	// What the wheel is.
	TestImports   []string // modules that the test imports
	WheelTopLevel []string // top-level modules in the wheel
	WheelRequires []string // Requires-Dist lines
}

// failed says whether the evidence is that of a failure at all.
func (e *Evidence) failed() bool {
	return e.ExitCode != 0 || e.Signal != "" || e.OOMKilled || e.TimedOut || e.Lost
}

// asRoot says whether the commands of a fix run as root: in an image, or because the user is root.
func (e *Evidence) asRoot() bool { return e.Image != "" || e.Root }

// in says whether the failure happened in one of the stages; unknown matches all.
func (e *Evidence) in(stages ...string) bool {
	return e.Stage == "" || slices.Contains(stages, e.Stage)
}

// Class says what kind of cause a diagnosis names. It decides whether trying again
// can help, and how.
type Class string

// The classes.
const (
	ClassFault   Class = "fault"   // trying again gives the same result
	ClassNetwork Class = "network" // try again after a while
	ClassMemory  Class = "memory"  // try again with fewer jobs
	ClassTime    Class = "time"    // go on from what is compiled
	ClassDisk    Class = "disk"    // clean, then try again
	ClassLost    Class = "lost"    // try again elsewhere
)

// Confidence says how sure a diagnosis is.
type Confidence string

// The levels, best first.
const (
	Certain  Confidence = "certain"  // the text says it and a fact agrees, or the kernel says it
	Likely   Confidence = "likely"   // the text says it, and nothing contradicts
	Possible Confidence = "possible" // it fits, and so would other causes
)

// A Diagnosis is one cause of a failure, for people and for the retry policy.
type Diagnosis struct {
	ID         string     `json:"id"`         // stable: "oom", "no-nvcc", …
	Title      string     `json:"title"`      // one line without the facts of this case
	Detail     string     `json:"detail"`     // what happened here, with versions and names
	Fix        string     `json:"fix"`        // what to do, for this platform; several ways are lines
	Class      Class      `json:"class"`      // what kind of cause
	Confidence Confidence `json:"confidence"` // how sure
	Lines      []string   `json:"lines"`      // the lines of the log that prove it, at most ten
}
