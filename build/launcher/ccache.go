package launcher

import (
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// ccache is one call of it.
type ccache struct {
	*launcher
	id   string
	port int // of the way to the remote cache
}

// compiler returns the identity of what compiles: nvcc has a second compiler for the host.
func (c *ccache) compiler(call *call) string {
	id := c.tool.ID
	if call.ccbin != "" {
		if host, ok := c.Tools[path.Base(call.ccbin)]; ok {
			id += "-" + host.ID
		}
	}
	// Variables that change what compilers do, and that ccache need not know.
	var changes []byte
	for _, pair := range c.env {
		name, _, _ := strings.Cut(pair, "=")
		switch name {
		case "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "GCC_EXEC_PREFIX", "COMPILER_PATH", "CCC_OVERRIDE_OPTIONS", "GCC_COMPARE_DEBUG",
			"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "DEVICE_LIB_PATH":
		default:
			if c.tool.Kind != HIPCC || !strings.HasPrefix(name, "HIP") && !strings.HasPrefix(name, "HCC") && !strings.HasPrefix(name, "ROCM") {
				continue
			}
		}
		changes = append(changes, c.canonicalArgs([]string{pair})[0]+"\n"...)
	}
	if len(changes) > 0 {
		id += "-" + fingerprint(changes)
	}
	return id
}

// environ is the configuration of ccache, all of it: no file of the user's is read.
//
// Sloppiness is empty. time_macros is not needed, since SOURCE_DATE_EPOCH fixes what __DATE__ and
// __TIME__ are, and a file that uses them is not shared rather than shared wrongly; the others
// allow changes that would be seen.
func (c *ccache) environ(compiler string, call *call, place string) []string {
	env := []string{
		"CCACHE_CONFIGPATH=/dev/null",
		"CCACHE_DIR=" + c.CacheDir,
		"CCACHE_MAXSIZE=" + strconv.FormatInt(max(c.CacheBytes/1000, 1), 10) + "k",
		// What was read decides, not the preprocessed text: see the package comment.
		"CCACHE_DEPEND=1",
		"CCACHE_COMPILERTYPE=" + c.kind(),
		"CCACHE_COMPILERCHECK=string:" + compiler,
		// The folder gets into debug information only, and -ffile-prefix-map has made that the same
		// for all.
		"CCACHE_NOHASHDIR=1",
		"CCACHE_STATSLOG=" + c.temp("stats"),
	}
	if c.Work != CanonicalWork && place == "" {
		env = append(env, "CCACHE_BASEDIR="+c.Work)
		if c.debug(call) {
			// nvcc writes whole paths into line tables, and cannot be told others: one folder, one
			// cache.
			env = append(env, "CCACHE_NAMESPACE="+fingerprint([]byte(c.Work)))
		}
	}
	if r := c.Remote; r != nil && r.Kind == "redis" {
		env = append(env, "CCACHE_REMOTE_STORAGE=redis+unix:"+r.Socket+attributes(r))
	} else if r != nil && c.port > 0 {
		env = append(env, "CCACHE_REMOTE_STORAGE=http://127.0.0.1:"+strconv.Itoa(c.port)+r.Path+attributes(r))
	}
	return env
}

// debug reports whether nvcc writes folders into its output, as the call or its variables say.
func (c *ccache) debug(call *call) bool {
	if c.tool.Kind != NVCC {
		return false
	}
	more := strings.Fields(getenv(c.env, "NVCC_PREPEND_FLAGS") + " " + getenv(c.env, "NVCC_APPEND_FLAGS"))
	return call.debug || slices.ContainsFunc(more, lineTables)
}

// kind is what ccache calls the compiler: it does not know hipcc, which takes clang's arguments.
func (c *ccache) kind() string {
	if c.tool.Kind == HIPCC {
		return string(Clang)
	}
	return string(c.tool.Kind)
}

func attributes(r *Remote) string { return strings.Join(append([]string{""}, r.Attributes...), "|") }

func (c *ccache) temp(kind string) string { return path.Join(c.Temp, c.id+"."+kind) }

// clean removes what was written for outcome.
func (c *ccache) clean() {
	os.Remove(c.temp("stats"))
}

// outcome reads what ccache did from the counters it changed.
func (c *ccache) outcome(r *Entry) {
	counters, err := os.ReadFile(c.temp("stats"))
	if err != nil {
		r.Result, r.Why = Bypass, "ccache wrote no statistics: "+err.Error()
		return
	}
	r.Result, r.Why, r.Remote = parseCounters(counters)
}

// parseCounters turns a stats log of one call into its outcome.
func parseCounters(text []byte) (result Outcome, why string, remote bool) {
	result, why = Bypass, "ccache counted nothing"
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "direct_cache_hit" || line == "preprocessed_cache_hit":
			return Hit, "", strings.Contains(string(text), "remote_storage_hit")
		case line == "cache_miss":
			result, why = Miss, ""
		case strings.Contains(line, "_storage_") || strings.HasSuffix(line, "_cache_miss"):
		case result == Bypass:
			why = "ccache: " + strings.ReplaceAll(line, "_", " ")
		}
	}
	return result, why, false
}

// connect opens the way to a remote cache over HTTP: ccache speaks TCP, the compilers have no
// network but their own loopback, and kiln listens in the file system.
func (c *ccache) connect() (stop func(), err error) {
	if c.Remote == nil || c.Remote.Kind != "http" {
		return func() {}, nil
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return func() {}, err
	}
	c.port = listener.Addr().(*net.TCPAddr).Port
	go func() {
		for {
			near, err := listener.AcceptTCP()
			if err != nil {
				return // closed
			}
			go relay(near, c.Remote.Socket)
		}
	}()
	return func() { _ = listener.Close() }, nil
}

// relay hands everything on between a connection and a socket in the file system.
func relay(near *net.TCPConn, socket string) {
	defer near.Close()
	far, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.CloseWrite()
	}()
	_, _ = io.Copy(near, far)
}
