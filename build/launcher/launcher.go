// Package launcher stands before the compilers of a build: kiln itself, called under their names through links, so that no
// package has to know. It rewrites what keeps compiles from being shared between rows, waits for a slot of the
// machine's pool, hands over to ccache, measures, and writes down every call.
//
// # What decides whether two calls may share a result
//
// The identity of the compiler (a digest of the programs behind it), the arguments after rewriting, and the
// bytes of every file that the compiler read, as its own dependency list names them. ccache compares exactly
// these in its depend mode. The preprocessed text decides nothing: for nvcc ccache would preprocess for the first
// GPU architecture alone, and miss what only the host or another architecture sees. That nvcc's dependency list covers
// all its passes is tried out for every toolkit; see build.FindCompilers. hipcc's list is that of the pass for the host, so
// the preprocessor is asked once more what the passes for GPUs read, and a digest of that decides too.
//
// What it does not do: cache anything itself, or decide how much may run at once. A package that calls a compiler
// by a path of its own goes past it, and is neither shared nor counted.
package launcher

import (
	"errors"
	"hash/fnv"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/kiln-build/kiln/internal/depfile"
)

// ConfigEnv names the variable with the path of the [Config]. Only with it a program is a launcher.
const ConfigEnv = "KILN_LAUNCHER"

// CanonicalWork is where containers see the folder of a row; records call it so everywhere.
const CanonicalWork = "/kiln/work"

// Config is what a launcher knows: it is read from a file at every call. Paths are as seen where the compilers run.
type Config struct {
	// Row, Package and Version say for whom is compiled.
	Row     string `json:"row"`
	Package string `json:"package"`
	Version string `json:"version"`
	// Work is the row's own folder, Bin the folder of links to this program.
	Work string `json:"work"`
	Bin  string `json:"bin"`
	// Tools are the compilers by the name that they are called by.
	Tools map[string]Tool `json:"tools"`
	// CCache is the path of ccache; empty means that there is none. CacheDir is its folder,
	// CacheBytes how much it may hold.
	CCache     string `json:"ccache,omitempty"`
	CacheDir   string `json:"cache_dir,omitempty"`
	CacheBytes int64  `json:"cache_bytes,omitempty"`
	// Slots is the socket of the pool; empty or dead means that nobody is asked.
	Slots string `json:"slots,omitempty"`
	// MemoryBytes is what a call is taken to need while nothing was learned.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// Remote is the shared cache behind the local one.
	Remote *Remote `json:"remote,omitempty"`
	// Map replaces the beginnings of header paths: the canonical places of what lies elsewhere in each row.
	Map []Mapping `json:"map,omitempty"`
	// Calls is the file that gets a line for every call, Deps the folder for lists of what was read, Temp
	// one for files of the moment.
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

// Remote is a shared cache, reached through sockets of kiln: compilers have no network, and never see credentials.
type Remote struct {
	// Socket is the local end.
	Socket string `json:"socket"`
	// Kind is "http" or "redis".
	Kind string `json:"kind"`
	// Path and Attributes are parts of ccache's own configuration: /cache and layout=bazel.
	Path       string   `json:"path,omitempty"`
	Attributes []string `json:"attributes,omitempty"`
}

// A program that is started as a compiler never becomes itself: it runs the compiler and exits. This is an init function
// because the packages of the whole program take longer to initialize than a launcher may take altogether. Packages are initialized in the
// order of their paths, as soon as what they import is, so this one comes early as long as it imports little: no fmt, no encoding/json,
// nothing that uses reflect, nor net, os/signal, path/filepath or x/sys. There is a test for that.
//
// Init functions run in the first thread, as the death signal of the child, which belongs to a thread, needs it.
func init() {
	config := os.Getenv(ConfigEnv) //nolint:forbidigo // A launcher is a program of its own.
	if config == "" || len(os.Args) == 0 {
		return
	}
	name := path.Base(os.Args[0])
	if hasPrefix(name, "kiln") || !looksLikeCompiler(name) {
		return
	}
	os.Exit(launch(name, config)) //nolint:forbidigo // A launcher is a program of its own.
}

// looksLikeCompiler keeps a program that merely inherited the variable from being taken for a launcher.
func looksLikeCompiler(name string) bool { return KindOf(name) != "" }

// KindOf tells the kind of a compiler by its name, such as x86_64-linux-gnu-g++-13; "" for other programs.
func KindOf(name string) Kind {
	switch name {
	case "nvcc":
		return NVCC
	case "hipcc", "amdclang", "amdclang++":
		return HIPCC
	}
	base := name
	for i := len(base) - 1; i > 0; i-- {
		if base[i] == '-' {
			if consistsOf(base[i+1:], "0123456789.") {
				base = base[:i]
			}
			break
		}
	}
	for _, c := range []struct {
		name string
		kind Kind
	}{{"clang++", Clang}, {"clang", Clang}, {"g++", GCC}, {"gcc", GCC}, {"c++", GCC}, {"cc", GCC}} {
		prefix, ok := cutSuffix(base, c.name)
		if ok && (prefix == "" || hasSuffix(prefix, "-linux-gnu-")) {
			return c.kind
		}
	}
	return ""
}

// launch is the life of a launcher. It returns the exit code.
func launch(name, path string) int {
	c, err := ReadConfig(path)
	if err != nil {
		say(err.Error())
		return 1
	}
	env := c.environ()
	tool, ok := c.Tools[name]
	if !ok {
		found := LookPath(name, getenv(env, "PATH"))
		if found == "" {
			say("no " + name + " behind " + c.Bin)
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
	c, err := parseConfig(string(text))
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return c, nil
}

// parseConfig reads what json.Marshal writes of a [Config].
func parseConfig(text string) (*Config, error) {
	v, err := parseJSON(text)
	if err != nil {
		return nil, err
	}
	c := &Config{
		Row: v.field("row").text, Package: v.field("package").text, Version: v.field("version").text, Work: v.field("work").text, Bin: v.field("bin").text,
		CCache: v.field("ccache").text, CacheDir: v.field("cache_dir").text, CacheBytes: v.field("cache_bytes").number, Slots: v.field("slots").text,
		MemoryBytes: v.field("memory_bytes").number, Calls: v.field("calls").text, Deps: v.field("deps").text, Temp: v.field("temp").text,
		Objects: v.field("objects").text, Tools: map[string]Tool{},
	}
	tools := v.field("tools")
	for i, name := range tools.names {
		t := &tools.list[i]
		c.Tools[name] = Tool{Path: t.field("path").text, Kind: Kind(t.field("kind").text), ID: t.field("id").text, Refused: t.field("refused").text}
	}
	if r := v.field("remote"); r.kind == '{' {
		c.Remote = &Remote{Socket: r.field("socket").text, Kind: r.field("kind").text, Path: r.field("path").text}
		for _, a := range r.field("attributes").list {
			c.Remote.Attributes = append(c.Remote.Attributes, a.text)
		}
	}
	for _, m := range v.field("map").list {
		c.Map = append(c.Map, Mapping{From: m.field("from").text, To: m.field("to").text})
	}
	return c, nil
}

// environ is the environment of the real compiler: the launcher is not on its way, and no ccache of the user's.
func (c *Config) environ() []string {
	var env []string
	for _, pair := range os.Environ() { //nolint:forbidigo // A launcher is a program of its own.
		name, value, _ := cut(pair, "=")
		switch {
		case name == ConfigEnv || hasPrefix(name, "CCACHE_"):
			continue
		case name == "PATH":
			dirs := slices.DeleteFunc(split(value, ":"), func(dir string) bool { return dir == c.Bin })
			pair = "PATH=" + join(dirs, ":")
		}
		env = append(env, pair)
	}
	return env
}

func getenv(env []string, key string) string {
	for _, pair := range slices.Backward(env) {
		if value, ok := cutPrefix(pair, key+"="); ok {
			return value
		}
	}
	return ""
}

// LookPath returns the first program of a name in a list of folders, "" if there is none.
func LookPath(name, list string) string {
	for _, dir := range split(list, ":") {
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
func say(text string) { _, _ = os.Stderr.WriteString("kiln: compiler launcher: " + text + "\n") }

// run runs the compiler and returns its exit code.
func (l *launcher) run(args []string) int {
	call := parseCall(l.tool.Kind, args)
	if call.other {
		return l.replace(args) // a link, a question: nothing to share, nothing to count
	}
	cwd, err := os.Getwd()
	if err != nil {
		say(err.Error())
		return 1
	}
	id := strconv.FormatInt(l.start.UnixNano(), 10) + "-" + strconv.Itoa(os.Getpid())
	record := Record{
		Time: l.start.UTC(), Row: l.Row, Tool: l.name, Compiler: l.tool.ID, Source: l.Canonical(absolute(cwd, call.source)),
		Object: absolute(cwd, call.output), Dir: cwd,
	}
	refused := call.refused
	switch {
	case l.tool.Refused != "":
		refused = l.tool.Refused
	case l.CCache == "":
		refused = "there is no ccache here"
	}
	argv := append([]string{l.tool.Path}, args...)
	env := l.env
	cc := &ccache{launcher: l, id: id}
	var deps depFile
	if refused == "" {
		deps = call.dependencies(cwd, path.Join(l.Deps, id+".d"))
		shared := l.rewrite(call, cwd, deps)
		record.Compiler = cc.compiler(call)
		record.Args = l.canonicalArgs(shared)
		argv = slices.Concat([]string{l.CCache, l.tool.Path}, shared)
		stop, err := cc.connect()
		if err != nil {
			say("remote cache: " + err.Error() + "; going on without")
		}
		defer stop()
	} else {
		record.Args = l.canonicalArgs(l.mapped(call, args))
	}
	slot := l.acquire(&record, call)
	defer slot.close()
	began := time.Now()
	record.WaitSeconds = began.Sub(l.start).Seconds()
	var passes time.Duration
	if refused == "" {
		identity := record.Compiler
		if l.tool.Kind == HIPCC {
			var read string
			if deps.device, read, passes, err = l.devices(call, cwd, cc.temp("passes")); err != nil {
				refused, deps, argv = "what its passes for GPUs read is not known: "+err.Error(), depFile{}, append([]string{l.tool.Path}, args...)
			}
			identity += "-" + read
		}
		if refused == "" {
			env = slices.Concat(l.env, cc.environ(identity, call))
		}
	}
	state, err := run(argv, env)
	if err == nil && refused == "" && state.killed() {
		// ccache was killed, with all that it had started. The compiler itself is still there to do its work.
		refused = "ccache was killed"
		state, err = run(argv[1:], l.env)
	}
	if err != nil {
		say(err.Error())
		return 126
	}
	record.Seconds, record.CPUSeconds, record.PeakMemoryBytes = time.Since(began).Seconds(), (state.cpu + passes).Seconds(), state.peakBytes
	record.ExitCode = state.exitCode()
	switch {
	case record.ExitCode != 0:
		record.Result = Failed
	case refused != "":
		record.Result, record.Why = Bypass, refused
	default:
		cc.outcome(&record)
	}
	if deps.path != "" && record.ExitCode == 0 {
		if err := deps.finish(); err != nil {
			say("dependency list: " + err.Error())
			return 1
		}
		record.Deps = deps.kept
	}
	cc.clean()
	if info, err := os.Stat(record.Object); err == nil {
		record.ObjectBytes = info.Size()
	}
	if record.Result == Hit && l.Objects != "" {
		record.Kept = path.Join(l.Objects, id+".o")
		if err := copyFile(record.Object, record.Kept); err != nil {
			record.Kept = ""
		}
		record.Command = append([]string{l.tool.Path}, argv[2:]...)
	}
	// A record that cannot be written is no reason to fail a compile that worked.
	if err := record.Append(l.Calls); err != nil {
		say("record: " + err.Error())
	}
	slot.done(&record)
	return record.ExitCode
}

// devices runs the preprocessor for each GPU that a call of hipcc compiles for, and returns the lists of what it read, a
// digest of the files, and the processor time. ccache learns from the list of the host alone what to compare; the digest is compared besides.
func (l *launcher) devices(call *call, cwd, temp string) (lists []byte, digest string, cpu time.Duration, err error) {
	defer os.Remove(temp)
	argv := slices.Concat([]string{l.tool.Path}, devicePasses(l.mapped(call, call.args)))
	state, err := capture(argv, l.env, temp)
	if err != nil {
		return nil, "", 0, err
	}
	if code := state.exitCode(); code != 0 {
		return nil, "", state.cpu, errors.New(l.name + " -M ended with " + strconv.Itoa(code))
	}
	if lists, err = os.ReadFile(temp); err != nil {
		return nil, "", state.cpu, err
	}
	files := depfile.Parse(lists)
	if len(files) == 0 {
		return nil, "", state.cpu, errors.New("nothing was listed")
	}
	var read []byte
	for _, file := range files {
		full := absolute(cwd, file)
		text, err := os.ReadFile(full)
		if err != nil {
			return nil, "", state.cpu, err
		}
		read = append(read, l.Canonical(path.Clean(full))+" "+fingerprint(text)+"\n"...)
	}
	return slices.Concat([]byte("\n"), lists), fingerprint(read), state.cpu, nil
}

// rewrite returns the arguments that are shared: headers at their canonical places, no folder of this row in what is
// written, dependencies always, by their short names.
func (l *launcher) rewrite(call *call, cwd string, deps depFile) []string {
	args := l.mapped(call, call.args)
	if l.tool.Kind != NVCC {
		// What debuggers and __FILE__ are told must not depend on the row. Later ones win.
		if l.Work != CanonicalWork {
			args = append(args, "-ffile-prefix-map="+l.Work+"="+CanonicalWork)
		}
		args = append(args, "-ffile-prefix-map="+cwd+"=/kiln/build")
	}
	return append(args, "-MD", "-MF", deps.path, "-MT", DepTarget)
}

// mapped returns arguments with header folders at their canonical places.
func (l *launcher) mapped(call *call, args []string) []string {
	return mapPaths(call.kind, args, func(path string) string {
		for _, m := range l.Map {
			if rest, ok := cutPrefix(path, m.From); ok && (rest == "" || rest[0] == '/') {
				return m.To + rest
			}
		}
		return path
	})
}

// Canonical names a path as the container of any row would.
func (c *Config) Canonical(path string) string {
	if rest, ok := cutPrefix(path, c.Work); ok && (rest == "" || rest[0] == '/') {
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
		case a == "-MD", hasPrefix(a, "-ffile-prefix-map="):
		case l.Work != CanonicalWork:
			out = append(out, replaceAll(a, l.Work, CanonicalWork))
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

// fingerprint tells texts apart that nobody has made to look alike. SHA-256 would be initialized too late; see init.
func fingerprint(text []byte) string {
	const digits = "0123456789abcdef"
	h := fnv.New128a()
	_, _ = h.Write(text)
	var out []byte
	for _, c := range h.Sum(nil) {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
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
