// Package launcher stands before the compilers of a build: kiln itself, called under their names
// through links, so that no package has to know. It rewrites what keeps compiles from being shared
// between rows, waits for a slot of the machine's pool, hands over to ccache, measures, and records
// every call.
//
// # What decides whether two calls may share a result
//
// The identity of the compiler (a digest of the programs behind it), the arguments after rewriting,
// and the bytes of every file that the compiler read, as its own dependency list names them. ccache
// compares exactly these in its depend mode. The preprocessed text decides nothing: for nvcc ccache
// would preprocess for the first GPU architecture alone, and miss what only the host or another
// architecture sees. That nvcc's dependency list covers all its passes is tried out for every
// toolkit; see share.FindCompilers. hipcc's list is that of the pass for the host, so the
// preprocessor is asked once more what the passes for GPUs read, and a digest of that decides too.
//
// What it does not do: cache anything itself, or decide how much may run at once. A package that
// calls a compiler by a path of its own bypasses it: that is not shared, but written down; see
// [PassVariable].
package launcher

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/depfile"
)

// ConfigEnv names the variable with the path of the [Config]. Only with it a program is a launcher.
const ConfigEnv = "KILN_LAUNCHER"

// CanonicalWork is where containers see the folder of a row; records call it so everywhere.
const CanonicalWork = "/kiln/work"

// Config is what a launcher knows: it is read from a file at every call. Paths are as seen where
// the compilers run.
type Config struct {
	// Row, Package and Version say for whom is compiled.
	Row     string `json:"row"`
	Package string `json:"package"`
	Version string `json:"version"`
	// Work is the row's own folder, Bin the folder of links to this program.
	Work string `json:"work"`
	Bin  string `json:"bin"`
	// Place is where compilers can be shown Work; "" if nowhere. Program is kiln, which does it.
	Place   string `json:"place,omitempty"`
	Program string `json:"program,omitempty"`
	// Passes is a folder of links to this program under the names of passes; see [PassVariable].
	Passes string `json:"passes,omitempty"`
	// Tools are the compilers by the name that they are called by.
	Tools map[string]Tool `json:"tools"`
	// CCache is the path of ccache; empty means that there is none. CacheDir is its folder,
	// CacheBytes how much it may hold.
	CCache     string `json:"ccache,omitempty"`
	CacheDir   string `json:"cache_dir,omitempty"`
	CacheBytes int64  `json:"cache_bytes,omitempty"`
	// Slots is the socket of the pool; empty or dead means that there is none.
	Slots string `json:"slots,omitempty"`
	// MemoryBytes is what a call is taken to need while nothing was learned.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// OneThread makes nvcc run its passes one after the other, whatever a package's --threads says:
	// an attempt before this one ran out of memory.
	OneThread bool `json:"one_thread,omitempty"`
	// Remote is the shared cache behind the local one.
	Remote *Remote `json:"remote,omitempty"`
	// Map replaces the beginnings of header paths: the canonical places of what lies elsewhere in
	// each row.
	Map []Mapping `json:"map,omitempty"`
	// Calls is the file that gets a line for every call, Deps the folder for lists of what was
	// read, Temp one for files of the moment.
	Calls string `json:"calls"`
	Deps  string `json:"deps"`
	Temp  string `json:"temp"`
	// Objects, if set, is a folder that keeps the objects that came from the cache, to be verified.
	Objects string `json:"objects,omitempty"`
}

// Tool is one compiler.
type Tool struct {
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// ID is a digest of all programs behind it.
	ID string `json:"id,omitempty"`
	// Refused says why its results are not shared; empty means that they are.
	Refused string `json:"refused,omitempty"`
}

// Kind is the family of a compiler: which arguments it takes.
type Kind string

// The kinds of compilers.
const (
	GCC   Kind = "gcc"
	Clang Kind = "clang"
	NVCC  Kind = "nvcc"
	HIPCC Kind = "hipcc"
)

// Mapping replaces the beginning of a path.
type Mapping struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Remote is a shared cache, reached through sockets of kiln: compilers have no network, and never
// see credentials.
type Remote struct {
	// Socket is the local end.
	Socket string `json:"socket"`
	// Kind is "http" or "redis".
	Kind string `json:"kind"`
	// Path and Attributes are parts of ccache's own configuration: /cache and layout=bazel.
	Path       string   `json:"path,omitempty"`
	Attributes []string `json:"attributes,omitempty"`
}

// Main runs a compiler and exits, if a build has started this program under the name of one. Else
// it returns. It belongs at the top of main: nothing may have been started before.
func Main() {
	if len(os.Args) > 4 && os.Args[1] == "launcher" {
		switch os.Args[2] {
		case atWord:
			os.Exit(at(os.Args[3], os.Args[4:])) //nolint:forbidigo // A launcher is a program of its own.
		case placedWord:
			os.Exit(placedAt(os.Args[3], os.Args[4:])) //nolint:forbidigo // A launcher is a program of its own.
		}
	}
	config := os.Getenv(ConfigEnv) //nolint:forbidigo // A launcher is a program of its own.
	name := filepath.Base(os.Args[0])
	// A program that inherited the variable is no launcher.
	if config == "" || KindOf(name) == "" && !isPass(name) && !IsWrapper(name) {
		return
	}
	if isPass(name) {
		os.Exit(past(name, config)) //nolint:forbidigo // A launcher is a program of its own.
	}
	if IsWrapper(name) {
		name = unwrap(name, config)
	}
	runtime.LockOSThread()        // for the death signal of the compiler
	os.Exit(launch(name, config)) //nolint:forbidigo // A launcher is a program of its own.
}

// KindOf tells the kind of a compiler by its name, such as x86_64-linux-gnu-g++-13; "" for other
// programs.
func KindOf(name string) Kind {
	switch name {
	case "nvcc":
		return NVCC
	case "hipcc", "amdclang", "amdclang++":
		return HIPCC
	}
	base := name
	if i := strings.LastIndexByte(name, '-'); i > 0 && strings.Trim(name[i+1:], "0123456789.") == "" {
		base = name[:i]
	}
	for _, c := range []struct {
		name string
		kind Kind
	}{{"clang++", Clang}, {"clang", Clang}, {"g++", GCC}, {"gcc", GCC}, {"c++", GCC}, {"cc", GCC}} {
		prefix, ok := strings.CutSuffix(base, c.name)
		if ok && (prefix == "" || strings.HasSuffix(prefix, "-linux-gnu-")) {
			return c.kind
		}
	}
	return ""
}

// launch is the life of a launcher. It returns the exit code.
func launch(name, path string) int {
	c, err := ReadConfig(path)
	if err != nil {
		say(err)
		return 1
	}
	env := c.environ()
	tool, ok := c.Tools[name]
	if !ok {
		found := LookPath(name, getenv(env, "PATH"))
		if found == "" {
			say(fmt.Errorf("no %s behind %s", name, c.Bin))
			return 127
		}
		tool = Tool{Path: found, Kind: KindOf(name), Refused: "it was not there when the build began"}
	}
	l := &launcher{Config: c, name: name, tool: tool, env: env, start: time.Now()}
	return l.run(os.Args[1:])
}

// ReadConfig reads the configuration of a launcher.
func ReadConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := new(Config)
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// environ is the environment of the real compiler: the launcher is not on its way, and no ccache of
// the user's.
func (c *Config) environ() []string {
	var env []string
	for _, pair := range os.Environ() { //nolint:forbidigo // A launcher is a program of its own.
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case name == ConfigEnv || strings.HasPrefix(name, "CCACHE_") || name == PassVariable && value == c.Passes:
			continue
		case name == "PATH":
			dirs := slices.DeleteFunc(strings.Split(value, ":"), func(dir string) bool { return dir == c.Bin })
			pair = "PATH=" + strings.Join(dirs, ":")
		}
		env = append(env, pair)
	}
	return env
}

func getenv(env []string, key string) string {
	for _, pair := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(pair, key+"="); ok {
			return value
		}
	}
	return ""
}

// LookPath returns the first program of a name in a list of folders, "" if there is none.
func LookPath(name, list string) string {
	for dir := range strings.SplitSeq(list, ":") {
		file := path.Join(dir, name)
		if info, err := os.Stat(file); path.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// launcher is one call of a compiler.
type launcher struct {
	*Config
	name  string
	tool  Tool
	env   []string
	start time.Time
}

// say tells the user something about the launcher itself.
func say(err error) { fmt.Fprintln(os.Stderr, "kiln: compiler launcher:", err) }

// run runs the compiler and returns its exit code.
func (l *launcher) run(args []string) int {
	if l.OneThread && l.tool.Kind == NVCC {
		args = oneThread(args)
	}
	call := parseCall(l.tool.Kind, args)
	if call.other {
		return l.replace(args) // a link, a question: nothing to share, nothing to count
	}
	cwd, err := os.Getwd()
	if err != nil {
		say(err)
		return 1
	}
	t := &compile{launcher: l, call: call, cwd: cwd, argv: append([]string{l.tool.Path}, args...), env: l.env, refused: l.refusal(call)}
	t.cc = &ccache{launcher: l, id: fmt.Sprintf("%d-%d", l.start.UnixNano(), os.Getpid())}
	t.record = Entry{
		Time: l.start.UTC(), Row: l.Row, Tool: l.name, Compiler: l.tool.ID, Source: l.Canonical(absolute(cwd, call.source)),
		Object: absolute(cwd, call.output), Dir: cwd,
	}
	if t.refused != "" {
		t.record.Args = l.canonicalArgs(l.mapped(call, args))
	} else {
		stop, err := t.share()
		if err != nil {
			say(fmt.Errorf("remote cache: %w; going on without", err))
		}
		defer stop()
	}
	slot := l.acquire(&t.record, call)
	defer slot.close()
	if err := t.execute(args); err != nil {
		say(err)
		return 126
	}
	if err := t.finish(); err != nil {
		say(fmt.Errorf("dependency list: %w", err))
		return 1
	}
	// A record that cannot be written is no reason to fail a compile that worked.
	if err := t.record.Append(l.Calls); err != nil {
		say(fmt.Errorf("record: %w", err))
	}
	slot.done(&t.record)
	return t.record.ExitCode
}

// refusal says why a call is not shared; "" if it is.
func (l *launcher) refusal(call *call) string {
	switch {
	case l.tool.Refused != "":
		return l.tool.Refused
	case l.CCache == "":
		return "there is no ccache here"
	}
	return call.refused
}

// compile is one compile: from the call as it came to the one that is made, and its record.
type compile struct {
	*launcher
	call    *call
	cwd     string
	argv    []string
	env     []string
	refused string
	cc      *ccache
	deps    depFile
	record  Entry
	// place is where the row's folder is shown to the compiler; "" means where it is.
	place string
}

// share turns the call into one of ccache. The function ends the way to the remote cache.
func (t *compile) share() (stop func(), err error) {
	t.deps = t.call.dependencies(t.cwd, path.Join(t.Deps, t.cc.id+".d"))
	shared := t.rewrite(t.call, t.cwd, t.deps)
	t.record.Compiler = t.cc.compiler(t.call)
	t.record.Args = t.canonicalArgs(shared)
	t.argv = slices.Concat([]string{t.CCache, t.tool.Path}, shared)
	if t.cc.debug(t.call) && t.Config.Place != "" && t.Work != CanonicalWork && strings.HasPrefix(t.cwd+"/", t.Work+"/") {
		t.place = t.Config.Place // else the folder is part of the key
		t.record.Place = t.place
		t.argv = placed(t.argv, t.Work, t.place)
		t.deps.place, t.deps.work = t.place, t.Work
	}
	return t.cc.connect()
}

// placed names the row's folder as the compiler sees it.
func placed(texts []string, work, place string) []string {
	out := slices.Clone(texts)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], work, place)
	}
	return out
}

// execute runs what share has prepared, or the call as it came, and records how it went.
func (t *compile) execute(args []string) error {
	began := time.Now()
	r := &t.record
	r.WaitSeconds = began.Sub(t.start).Seconds()
	var passes time.Duration
	identity := r.Compiler
	if t.refused == "" && t.tool.Kind == HIPCC {
		read, err := "", error(nil)
		if t.deps.device, read, passes, err = t.devices(t.call, t.cwd, t.cc.temp("passes")); err != nil {
			t.refused = "what its passes for GPUs read is not known: " + err.Error()
			t.deps, t.argv = depFile{}, append([]string{t.tool.Path}, args...)
		}
		identity += "-" + read
	}
	if t.refused == "" {
		t.env = slices.Concat(t.launcher.env, t.cc.environ(identity, t.call, t.place))
	}
	argv := t.argv
	if t.place != "" {
		argv = At(t.Program, t.Work, argv)
	}
	state, err := run(argv, t.env)
	if err == nil && t.refused == "" && killed(state) {
		// ccache was killed, with all that it had started. The compiler itself can still do its
		// work.
		t.refused = "ccache was killed"
		if argv = t.argv[1:]; t.place != "" {
			argv = At(t.Program, t.Work, argv)
		}
		state, err = run(argv, t.launcher.env)
	}
	if err != nil {
		return err
	}
	r.Seconds, r.CPUSeconds = time.Since(began).Seconds(), (cpuTime(state) + passes).Seconds()
	r.PeakMemoryBytes, r.ExitCode = peakBytes(state), exitCode(state)
	return nil
}

// finish records what became of the call, and gives the caller the dependency list.
func (t *compile) finish() error {
	r := &t.record
	switch {
	case r.ExitCode != 0:
		r.Result = Failed
	case t.refused != "":
		r.Result, r.Why = Bypass, t.refused
	default:
		t.cc.outcome(r)
	}
	if t.deps.path != "" && r.ExitCode == 0 {
		if err := t.deps.finish(); err != nil {
			return err
		}
		r.Deps = t.deps.kept
	}
	t.cc.clean()
	if info, err := os.Stat(r.Object); err == nil {
		r.ObjectBytes = info.Size()
	}
	if r.Result == Hit && t.Objects != "" {
		r.Kept = path.Join(t.Objects, t.cc.id+".o")
		if err := copyFile(r.Object, r.Kept); err != nil {
			r.Kept = ""
		}
		r.Command = slices.Clone(t.argv[1:])
	}
	return nil
}

// devices runs the preprocessor for each GPU that a call of hipcc compiles for, and returns the
// lists of what it read, a digest of the files, and the processor time. ccache learns from the list
// of the host alone what to compare; the digest is compared besides.
func (l *launcher) devices(call *call, cwd, temp string) (lists []byte, digest string, cpu time.Duration, err error) {
	defer os.Remove(temp)
	argv := slices.Concat([]string{l.tool.Path}, devicePasses(l.mapped(call, call.args)))
	state, err := capture(argv, l.env, temp)
	if err != nil {
		return nil, "", 0, err
	}
	if code := exitCode(state); code != 0 {
		return nil, "", cpuTime(state), fmt.Errorf("%s -M ended with %d", l.name, code)
	}
	if lists, err = os.ReadFile(temp); err != nil {
		return nil, "", cpuTime(state), err
	}
	files := depfile.Parse(lists)
	if len(files) == 0 {
		return nil, "", cpuTime(state), errors.New("nothing was listed")
	}
	var read []byte
	for _, file := range files {
		full := absolute(cwd, file)
		text, err := os.ReadFile(full)
		if err != nil {
			return nil, "", cpuTime(state), err
		}
		read = append(read, l.Canonical(path.Clean(full))+" "+fingerprint(text)+"\n"...)
	}
	return slices.Concat([]byte("\n"), lists), fingerprint(read), cpuTime(state), nil
}

// rewrite returns the arguments that are shared: headers at their canonical places, no folder of
// this row in what is written, dependencies always, by their short names.
func (l *launcher) rewrite(call *call, cwd string, deps depFile) []string {
	args := l.mapped(call, call.args)
	if l.tool.Kind != NVCC {
		// What debuggers and __FILE__ are told must not depend on the row. Later ones win.
		if l.Work != CanonicalWork {
			args = append(args, "-ffile-prefix-map="+l.Work+"="+CanonicalWork)
		}
		args = append(args, "-ffile-prefix-map="+cwd+"=/kiln/build")
	}
	return append(append(args, l.asNamed(call)...), "-MD", "-MF", deps.path, "-MT", DepTarget)
}

// asNamed returns the argument that makes GCC list system headers by the names that they were found
// by. It would follow links where that makes the name shorter, and list the Python of this row, which
// is the same file for every row, in place of the link that differs.
func (l *launcher) asNamed(call *call) []string {
	const option = "-fno-canonical-system-headers"
	switch call.kind {
	case GCC:
		return []string{option}
	case NVCC:
		host := path.Base(cmp.Or(call.ccbin, "g++"))
		kind := KindOf(host)
		if tool, ok := l.Tools[host]; ok {
			kind = tool.Kind
		}
		if kind != Clang { // which does not follow links
			return []string{"-Xcompiler=" + option}
		}
	}
	return nil
}

// mapped returns arguments with header folders at their canonical places.
func (l *launcher) mapped(call *call, args []string) []string {
	return mapPaths(call.kind, args, func(path string) string {
		for _, m := range l.Map {
			if rest, ok := strings.CutPrefix(path, m.From); ok && (rest == "" || rest[0] == '/') {
				return m.To + rest
			}
		}
		return path
	})
}

// Canonical names a path as the container of any row would.
func (c *Config) Canonical(path string) string {
	if rest, ok := strings.CutPrefix(path, c.Work); ok && (rest == "" || rest[0] == '/') {
		return CanonicalWork + rest
	}
	return path
}

// canonicalArgs returns what is compared between rows: without the names of what is written.
func (l *launcher) canonicalArgs(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case (a == "-o" || a == "-MF" || a == "-MT") && i+1 < len(args):
			i++
		case a == "-MD", strings.HasPrefix(a, "-ffile-prefix-map="), strings.HasSuffix(a, "-fno-canonical-system-headers"):
		case l.Work != CanonicalWork:
			out = append(out, strings.ReplaceAll(a, l.Work, CanonicalWork))
		default:
			out = append(out, a)
		}
	}
	return out
}

func absolute(dir, file string) string {
	if file == "" || path.IsAbs(file) {
		return file
	}
	return path.Join(dir, file)
}

// fingerprint is a digest of a text that decides what is shared.
func fingerprint(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

func copyFile(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if e := dst.Close(); err == nil {
		err = e
	}
	return err
}
