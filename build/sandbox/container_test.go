package sandbox

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// The same container for both runtimes: what differs is the program, and what was asked for by
// option.
func TestContainerArgs(t *testing.T) {
	full := container{
		name: "kiln-0123abcd-row-x", owner: "run 7", box: "row", image: "sha256:feed", user: "1000:1000", dir: "/inside/src",
		env: []string{"PATH=/bin", "A=b c"}, argv: []string{"python3", "-m", "build"}, network: "none",
		mounts:      []Mount{{Host: "/home/me/src", Inside: "/inside/src"}, {Host: "/a,b", Inside: "/in", ReadOnly: true}},
		memoryBytes: 6 << 30, pids: 4096, cpus: 1.5, caps: []string{"CHOWN"}, init: true,
	}
	base := []string{
		"--pull", "never", "--hostname", "kiln", "--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--cap-drop", "all",
	}
	fullArgs := slices.Concat(
		[]string{"create", "--name", "kiln-0123abcd-row-x", "--label", "kiln.owner=run 7", "--label", "kiln.box=row", "--log-driver", "none"},
		base,
		[]string{
			"--cap-add", "CHOWN", "--network", "none", "--memory", "6442450944b", "--memory-swap", "6442450944b", "--pids-limit", "4096",
			"--cpus", "1.500", "--init", "--user", "1000:1000",
			"--mount", "type=bind,source=/home/me/src,target=/inside/src", "--mount", `type=bind,"source=/a,b",target=/in,readonly`,
			"--workdir", "/inside/src",
		})
	command := []string{"--entrypoint", "/usr/bin/env", "sha256:feed", "-i", "PATH=/bin", "A=b c", "python3", "-m", "build"}
	for _, test := range []struct {
		name  string
		opts  ContainerOptions
		limit []string
		k     container
		want  []string
	}{
		{"docker", ContainerOptions{Runtime: "docker"}, nil, full, slices.Concat(fullArgs, command)},
		{"podman", ContainerOptions{Runtime: "podman"}, []string{"--ulimit", "nofile=1:1"}, full, slices.Concat(fullArgs, []string{"--ulimit", "nofile=1:1"}, command)},
		{
			"extra arguments",
			ContainerOptions{ExtraArgs: []string{"--ulimit", "nproc=9:9"}},
			nil, full,
			slices.Concat(fullArgs, []string{"--ulimit", "nproc=9:9"}, command),
		},
		{
			"least",
			ContainerOptions{},
			nil,
			container{name: "n", owner: "o", box: "b", image: "i", argv: []string{"true"}},
			slices.Concat([]string{"create", "--name", "n", "--label", "kiln.owner=o", "--label", "kiln.box=b", "--log-driver", "none"}, base,
				[]string{"--pids-limit", "-1", "--entrypoint", "/usr/bin/env", "i", "-i", "true"}),
		},
		{
			"secrets",
			ContainerOptions{},
			nil,
			container{name: "n", owner: "o", box: "b", image: "i", argv: []string{"true"}, secrets: []string{"TOKEN=hunter2"}},
			slices.Concat([]string{"create", "--name", "n", "--label", "kiln.owner=o", "--label", "kiln.box=b", "--log-driver", "none", "--interactive"}, base,
				[]string{"--pids-limit", "-1", "--entrypoint", "/usr/bin/env", "i", "-i", "sh", "-c", readSecrets, "sh", "true"}),
		},
		{
			"terminal",
			ContainerOptions{},
			nil,
			container{image: "i", argv: []string{"sh"}, terminal: true, network: "host"},
			slices.Concat([]string{"run", "--rm", "--interactive", "--tty"}, base,
				[]string{"--network", "host", "--pids-limit", "-1", "--entrypoint", "/usr/bin/env", "i", "-i", "sh"}),
		},
	} {
		c := Container(test.opts)
		c.own = test.limit
		if diff := cmp.Diff(test.want, c.args(test.k)); diff != "" {
			t.Errorf("%s: want -, got +\n%s", test.name, diff)
		}
	}
}

// What an environment makes of a command, before the runtime is asked.
func TestContainerDescribe(t *testing.T) {
	spec := Spec{
		Name: "row", Owner: "me", MemoryBytes: 1 << 30, PIDs: 10, CPUs: 2, User: "65534:65534",
		Mounts: []Mount{{Host: "/h/src", Inside: "/inside"}, {Host: "/h/cache", Inside: "/cache", ReadOnly: true}},
	}
	c := Container(ContainerOptions{Runtime: "docker", Network: "host", CABundle: "/h/ca.pem", NetworkEnv: []string{"HTTPS_PROXY=http://p"}})
	box := &containerBox{c: c, spec: spec, id: "sha256:1", env: []string{"PATH=/image", "CUDA=1"}, gate: newGate("row")}

	got, err := box.describe(Command{Argv: []string{"make"}, Env: []string{"PATH=/mine"}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.name, namePrefix("me")+"row-") {
		t.Errorf("name %q", got.name)
	}
	got.name = ""
	want := container{
		owner: "me", box: "row", image: "sha256:1", user: "65534:65534", dir: "/inside", env: []string{"PATH=/mine", "CUDA=1"}, argv: []string{"make"},
		network: "none", mounts: spec.Mounts, memoryBytes: 1 << 30, pids: 10, cpus: 2, caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"}, init: true,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(container{})); diff != "" {
		t.Error("without network, want -, got +\n" + diff)
	}

	got, err = box.describe(Command{Argv: []string{"pip"}, Env: []string{"PIP_CERT=/mine"}, Dir: "/h/cache/x", Network: true})
	if err != nil {
		t.Fatal(err)
	}
	got.name = ""
	want.dir, want.argv, want.network = "/cache/x", []string{"pip"}, "host"
	want.mounts = append(slices.Clone(spec.Mounts), Mount{Host: "/h/ca.pem", Inside: insideCABundle, ReadOnly: true})
	want.env = []string{
		"PATH=/image", "CUDA=1", "SSL_CERT_FILE=" + insideCABundle, "REQUESTS_CA_BUNDLE=" + insideCABundle, "PIP_CERT=/mine",
		"CURL_CA_BUNDLE=" + insideCABundle, "GIT_SSL_CAINFO=" + insideCABundle, "HTTPS_PROXY=http://p",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(container{})); diff != "" {
		t.Error("with network, want -, got +\n" + diff)
	}

	for _, bad := range []Command{
		{},
		{Argv: []string{"a=b"}},
		{Argv: []string{"-x"}},
		{Argv: []string{"true"}, Env: []string{"no value"}},
		{Argv: []string{"true"}, Env: []string{"=x"}},
		{Argv: []string{"true"}, Env: []string{"--split-string=x"}},
	} {
		if _, err := box.describe(bad); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

func TestContainerMistakes(t *testing.T) {
	for _, test := range []struct {
		runtime string
		spec    Spec
		want    string
	}{
		{"lxc", Spec{Name: "b", Image: "i"}, `open b: "lxc" is not a runtime: podman and docker are`},
		{"podman", Spec{Name: "b"}, "open b: no image is given"},
		{"podman", Spec{Name: "b", Image: "i", Mounts: []Mount{{Host: "rel", Inside: "/x"}}}, "open b: mount rel: its path on the host is not absolute"},
	} {
		if _, err := Container(ContainerOptions{Runtime: test.runtime}).Open(t.Context(), test.spec); err == nil || err.Error() != test.want {
			t.Errorf("error %q, want %q", err, test.want)
		}
	}
	host := t.TempDir()
	for _, inside := range []string{"", "x", "/", "/a/", "/a/../b"} {
		if err := checkMounts([]Mount{{Host: host, Inside: inside}}); err == nil {
			t.Errorf("mount at %q: no error", inside)
		}
	}
	if err := checkMounts([]Mount{{Host: host, Inside: "/a"}, {Host: host, Inside: "/a"}}); err == nil {
		t.Error("two mounts in one place: no error")
	}
}

// Runtimes read the argument as a line of CSV with fields key=value.
func TestMountArgIsCSV(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune(`ab ,"=:'\/é`)), 0, 12, -1)
		m := Mount{Host: "/" + text.Draw(t, "host"), Inside: "/" + text.Draw(t, "inside"), ReadOnly: rapid.Bool().Draw(t, "read-only")}
		want := []string{"type=bind", "source=" + m.Host, "target=" + m.Inside}
		if m.ReadOnly {
			want = append(want, "readonly")
		}
		got, err := csv.NewReader(strings.NewReader(mountArg(m))).Read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestContainerName(t *testing.T) {
	long := newName("owner/1", strings.Repeat("é", 300))
	if len(long) > 128 || strings.Trim(long, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		t.Errorf("name %q", long)
	}
	if first := newName("a", "b"); first == newName("a", "b") {
		t.Error("two containers with one name")
	}
	if namePrefix("a") == namePrefix("b") {
		t.Error("two owners with one prefix")
	}
}

func TestImagePin(t *testing.T) {
	const digest = "@sha256:aa"
	for _, test := range []struct {
		name    string
		digests []string
		want    string
	}{
		{"docker.io/nvidia/cuda:12.8.1-devel", []string{"docker.io/other/cuda" + digest, "docker.io/nvidia/cuda" + digest}, "docker.io/nvidia/cuda" + digest},
		{"debian:13", []string{"docker.io/library/debian" + digest}, "docker.io/library/debian" + digest},
		{"registry:5000/a/b", []string{"registry:5000/a/b" + digest}, "registry:5000/a/b" + digest},
		{"a/b@sha256:aa", []string{"a/b" + digest}, "a/b" + digest},
		{"localhost/mine", nil, "sha256:id"},
		{"bian", []string{"docker.io/library/debian" + digest}, "sha256:id"},
	} {
		if got := (image{ID: "sha256:id", RepoDigests: test.digests}).pin(test.name); got != test.want {
			t.Errorf("%s is pinned as %s, want %s", test.name, got, test.want)
		}
	}
}

func TestSetupTag(t *testing.T) {
	seen := map[string]bool{}
	for _, base := range []string{"sha256:1", "sha256:2"} {
		for _, setup := range [][][]string{{{"a", "b"}}, {{"a"}, {"b"}}, {{"a b"}}, {{"a", "b"}, {}}} {
			tag, digest := setupTag(base, setup)
			if again, _ := setupTag(base, setup); again != tag {
				t.Errorf("%q and %q for one setup", tag, again)
			}
			if seen[tag] || !strings.HasPrefix(tag, "localhost/kiln-setup:"+digest[:8]) {
				t.Errorf("tag %q of %s %q", tag, base, setup)
			}
			seen[tag] = true
		}
	}
}

func TestMergeEnv(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2"}, nil, []string{"C=3", "A=4", "A=5"})
	if diff := cmp.Diff([]string{"A=5", "B=2", "C=3"}, got); diff != "" {
		t.Error(diff)
	}
}

// Messages as the runtimes print them.
func TestRuntimeErrors(t *testing.T) {
	exit := errors.New("exit status 125")
	for _, test := range []struct {
		runtime, output string
		err, want       error
		next            string
	}{
		{"docker", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", exit, ErrRuntimeDown, "systemctl start docker"},
		{"docker", "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock", exit, ErrRuntimeDown, "add yourself"},
		{"podman", "Cannot connect to Podman. Please verify your connection to the Linux system using `podman system connection list`", exit, ErrRuntimeDown, "podman machine start"},
		{"docker", "Error response from daemon: No such image: none:latest", exit, ErrNoImage, "check the name"},
		{"podman", "Error: inspecting object: localhost/none: image not known", exit, ErrNoImage, "check the name"},
		{"podman", "Error: initializing source docker://x:1: reading manifest 1 in x: manifest unknown", exit, ErrNoImage, "check the name"},
		{"podman", "Error: runc: runc create failed: error setting rlimit type 7: operation not permitted: OCI permission denied", exit, exit, "--ulimit"},
		{"podman", "Error: something new", exit, exit, ""},
		{"podman", "", &exec.Error{Name: "podman", Err: exec.ErrNotFound}, ErrNoRuntime, "install podman"},
		{"docker", "", &os.PathError{Op: "fork/exec", Path: "/x/docker", Err: os.ErrNotExist}, ErrNoRuntime, "install docker"},
	} {
		got := newRuntimeError(test.runtime, "do it", test.output, test.err)
		if !errors.Is(got, test.want) || (test.next == "") != (got.Next == "") || !strings.Contains(got.Next, test.next) {
			t.Errorf("%q: %+v", test.output, got)
		}
		if text := got.Error(); !strings.HasPrefix(text, test.runtime+": do it: ") || strings.Contains(text, "Error: ") {
			t.Errorf("%q: text %q", test.output, text)
		}
	}
}

func TestNoEngine(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "podman")
	for _, program := range []string{missing, "there-is-no-such-runtime"} {
		c := Container(ContainerOptions{Program: program})
		if _, err := c.Check(t.Context()); !errors.Is(err, ErrNoRuntime) {
			t.Errorf("%s: Check: %v", program, err)
		}
		if _, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian"}); !errors.Is(err, ErrNoRuntime) {
			t.Errorf("%s: Open: %v", program, err)
		}
		if _, err := c.Sweep(t.Context(), "me"); !errors.Is(err, ErrNoRuntime) {
			t.Errorf("%s: Sweep: %v", program, err)
		}
	}
}

// A docker command without a service is the usual state of a machine that had docker once.
func TestDockerDown(t *testing.T) {
	if _, err := exec.LookPath("docker"); err != nil {
		kilntest.Lacking(t, "docker", "no docker command")
	}
	c := Container(ContainerOptions{Runtime: "docker", RuntimeArgs: []string{"--host", "unix://" + filepath.Join(t.TempDir(), "none.sock")}})
	if _, err := c.Check(t.Context()); !errors.Is(err, ErrRuntimeDown) {
		t.Errorf("Check: %v", err)
	}
	_, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian"})
	if !errors.Is(err, ErrRuntimeDown) || !strings.Contains(err.Error(), "start its service") {
		t.Errorf("Open: %v", err)
	}
}

// brokenRuntime is a program that answers some calls, notes all of them, and injects faults.
func brokenRuntime(t *testing.T, script string) (c *Containers, calls func() []string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the fault is injected by a shell script")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "runtime")
	text := "#!/bin/sh\ncd '" + dir + "'\necho \"$*\" >>calls\n" + script
	if err := os.WriteFile(program, []byte(text), 0o777); err != nil {
		t.Fatal(err)
	}
	return Container(ContainerOptions{Runtime: "docker", Program: program}), func() []string {
		data, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
}

const inspectAnswer = `[{"Id":"sha256:11","RepoDigests":["docker.io/library/debian@sha256:22"],"Config":{"Env":["PATH=/bin"]}}]`

func TestPullTriesAgain(t *testing.T) {
	c, calls := brokenRuntime(t, `
case "$1" in
image) [ -e here ] && echo '`+inspectAnswer+`' && exit; echo "Error: No such image: $3" >&2; exit 1 ;;
pull) echo "layer 1" >&2; echo x >>tries; [ "$(wc -l <tries)" -ge 3 ] && : >here && exit; echo "read tcp: connection reset by peer" >&2; exit 1 ;;
esac`)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		start := time.Now()
		box, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian:13", Log: &log})
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < 2*time.Second {
			t.Errorf("waited only %v between three attempts", waited)
		}
		if box.Image() != "docker.io/library/debian@sha256:22" {
			t.Errorf("image %q", box.Image())
		}
		if n := strings.Count(log.String(), "layer 1"); n != 3 {
			t.Errorf("log %q", &log)
		}
	})
	want := []string{"image inspect debian:13", "image inspect debian:13", "pull debian:13", "pull debian:13", "pull debian:13", "image inspect debian:13"}
	if diff := cmp.Diff(want, calls()); diff != "" {
		t.Error("calls, want -, got +\n" + diff)
	}
}

func TestPullGivesUp(t *testing.T) {
	for _, test := range []struct {
		message string
		pulls   int
		want    error
	}{
		{"read tcp: connection reset by peer", 3, nil},
		{"reading manifest 13 in docker.io/library/debian: manifest unknown", 1, ErrNoImage},
		{"Cannot connect to the Docker daemon at unix:///x", 1, ErrRuntimeDown},
	} {
		c, calls := brokenRuntime(t, `
case "$1" in
image) echo "Error: No such image: $3" >&2; exit 1 ;;
pull) echo "`+test.message+`" >&2; exit 1 ;;
esac`)
		synctest.Test(t, func(t *testing.T) {
			_, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian:13"})
			if err == nil || !strings.Contains(err.Error(), test.message) || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v", err)
			}
		})
		pulls := slices.DeleteFunc(calls(), func(call string) bool { return !strings.HasPrefix(call, "pull") })
		if len(pulls) != test.pulls {
			t.Errorf("%s: %d pulls, want %d", test.message, len(pulls), test.pulls)
		}
	}
}

// A runtime that stops in the middle of a command is not a command that failed.
func TestRuntimeBreaks(t *testing.T) {
	for _, test := range []struct{ name, start, state, want string }{
		{"not started", `echo "OCI runtime error" >&2; exit 126`, `"Running":false,"ExitCode":126,"StartedAt":"0001-01-01T00:00:00Z"`, "start container"},
		{"client lost", `exit 1`, `"Running":true,"StartedAt":"2026-01-01T00:00:00Z"`, "follow container"},
	} {
		c, calls := brokenRuntime(t, `
case "$1" in
image) echo '`+inspectAnswer+`' ;;
start) `+test.start+` ;;
container) echo '[{"Id":"x","State":{`+test.state+`}}]' ;;
esac`)
		box, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = box.Run(t.Context(), Command{Argv: []string{"true"}, Stdout: io.Discard})
		if failed, ok := errors.AsType[*RuntimeError](err); !ok || !strings.HasPrefix(failed.Action, test.want) {
			t.Errorf("%s: error %v", test.name, err)
		}
		if all := calls(); !strings.HasPrefix(all[len(all)-1], "rm --force --volumes kiln-") {
			t.Errorf("%s: the container is not removed: %q", test.name, all)
		}
	}
}

// A runtime without an init program is used without.
func TestNoInit(t *testing.T) {
	c, calls := brokenRuntime(t, `
case "$*" in
image*) echo '`+inspectAnswer+`' ;;
create*--init*) echo "Error: container-init binary not found on the host: stat /x: no such file" >&2; exit 125 ;;
container*) echo '[{"Id":"x","State":{"ExitCode":0,"StartedAt":"2026-01-01T00:00:00Z","FinishedAt":"2026-01-01T00:00:02Z"}}]' ;;
esac`)
	box, err := c.Open(t.Context(), Spec{Name: "b", Image: "debian"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		outcome, err := box.Run(t.Context(), Command{Argv: []string{"true"}})
		if err != nil || outcome.Wall != 2*time.Second {
			t.Errorf("outcome %+v, error %v", outcome, err)
		}
	}
	creates := slices.DeleteFunc(calls(), func(call string) bool { return !strings.HasPrefix(call, "create") })
	if len(creates) != 3 || strings.Contains(creates[1], "--init") || strings.Contains(creates[2], "--init") {
		t.Errorf("calls %q", creates)
	}
}

func TestKeyedLocks(t *testing.T) {
	var locks keyedLocks
	unlock, err := locks.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := locks.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if _, err := locks.lock(ctx, "a"); !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	unlock()
	if unlock, err = locks.lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestControlGroup(t *testing.T) {
	const id = "4f2a"
	v1 := fstest.MapFS{
		"sys/fs/cgroup/memory/a/memory.usage_in_bytes":                         {Data: []byte("7\n")},
		"sys/fs/cgroup/memory/libpod_parent/libpod-4f2a/memory.usage_in_bytes": {Data: []byte("1000\n")},
		"sys/fs/cgroup/memory/libpod_parent/libpod-4f2a/memory.stat":           {Data: []byte("inactive_file 999\ntotal_inactive_file 100\ntotal_active_file 50\n")},
		"sys/fs/cgroup/memory/libpod_parent/libpod-4f2a/memory.oom_control":    {Data: []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")},
		"sys/fs/cgroup/cpu,cpuacct/libpod_parent/libpod-4f2a/cpuacct.usage":    {Data: []byte("3000000\n")},
		"sys/fs/cgroup/unified/libpod_parent/libpod-4f2a/cgroup.procs":         {},
	}
	v2 := fstest.MapFS{
		"sys/fs/cgroup/cgroup.controllers":                                       {Data: []byte("cpu memory\n")},
		"sys/fs/cgroup/machine.slice/libpod-4f2a.scope/container/memory.current": {Data: []byte("999\n")},
		"sys/fs/cgroup/machine.slice/libpod-conmon-4f2a.scope/memory.current":    {Data: []byte("8\n")},
		"sys/fs/cgroup/machine.slice/libpod-4f2a.scope/memory.current":           {Data: []byte("1000\n")},
		"sys/fs/cgroup/machine.slice/libpod-4f2a.scope/memory.stat":              {Data: []byte("anon 5\nactive_file 50\ninactive_file 100\n")},
		"sys/fs/cgroup/machine.slice/libpod-4f2a.scope/memory.events":            {Data: []byte("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")},
		"sys/fs/cgroup/machine.slice/libpod-4f2a.scope/cpu.stat":                 {Data: []byte("usage_usec 3000\nuser_usec 1\n")},
	}
	want := usage{samples: 1, peakBytes: 850, oomKills: 2, cpu: 3 * time.Millisecond}
	for name, root := range map[string]fstest.MapFS{"version 1": v1, "version 2": v2} {
		group := findControlGroup(root, id)
		if group == nil {
			t.Errorf("%s: not found", name)
			continue
		}
		var got usage
		group.sample(&got)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(usage{})); diff != "" {
			t.Errorf("%s: want -, got +\n%s", name, diff)
		}
		if other := group.sibling(id, "77"); !group.exists() || other.exists() || strings.ReplaceAll(other.memory, "77", id) != group.memory {
			t.Errorf("%s: beside %+v is %+v", name, group, other)
		}
		// What was seen stays when the group is gone, and when less is used.
		clear(root)
		group.sample(&got)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(usage{})); diff != "" {
			t.Errorf("%s, gone: want -, got +\n%s", name, diff)
		}
	}
	others := fstest.MapFS{"sys/fs/cgroup/cgroup.controllers": {}, "sys/fs/cgroup/user.slice/memory.current": {Data: []byte("1")}}
	for _, id := range []string{id, ""} {
		if group := findControlGroup(others, id); group != nil {
			t.Errorf("container %q has the group %+v of another", id, group)
		}
	}
}

func TestKilledForMemory(t *testing.T) {
	for _, test := range []struct {
		exitCode int
		seen     usage
		limit    int64
		want     bool
	}{
		{137, usage{}, 100, true},
		{137, usage{samples: 3, peakBytes: 60}, 100, true},
		{137, usage{samples: 3, peakBytes: 10}, 100, false},
		{137, usage{samples: 3, peakBytes: 60}, 0, false},
		{1, usage{samples: 3, peakBytes: 100}, 100, false},
	} {
		if got := killedForMemory(test.exitCode, test.seen, test.limit); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestBoxOutputTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := newBoxOutput(Command{})
		w, _ := out.writers()
		var all strings.Builder
		for _, piece := range rapid.SliceOf(rapid.StringMatching(`[ab\n]{0,40}`)).Draw(t, "pieces") {
			all.WriteString(piece)
			if n, err := io.WriteString(w, piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		var want []string
		if text := strings.TrimRight(all.String(), "\n"); text != "" {
			want = strings.Split(text, "\n")
			want = want[max(0, len(want)-tailLines):]
		}
		if diff := cmp.Diff(want, out.tail()); diff != "" {
			t.Fatal(diff)
		}
	})
	// A flood is kept in bounded memory.
	out := newBoxOutput(Command{})
	w, _ := out.writers()
	for i := range 100_000 {
		fmt.Fprintf(w, "line %d\n", i)
	}
	if len(out.end) > 2*keepBytes {
		t.Errorf("%d bytes are kept", len(out.end))
	}
	if lines := out.tail(); len(lines) != tailLines || lines[tailLines-1] != "line 99999" {
		t.Errorf("tail %q", lines)
	}
}

func FuzzInspect(f *testing.F) {
	f.Add([]byte(inspectAnswer))
	f.Add([]byte(`[{"Id":"4f2a","State":{"Status":"exited","Running":false,"OOMKilled":true,"Pid":0,"ExitCode":137,"StartedAt":"2026-11-15T06:02:41.934015234Z","FinishedAt":"2026-11-15T06:02:42Z"}}]`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`[{"Id":""}]`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if img, err := parseImage(data); err == nil {
			if !strings.HasPrefix(img.ID, "sha256:") || img.pin("debian:13") == "" {
				t.Errorf("image %+v", img)
			}
		}
		if info, err := parseContainer(data); err == nil && info.ID == "" {
			t.Errorf("container %+v", info)
		}
		if !json.Valid(data) {
			if _, err := parseContainer(data); err == nil {
				t.Error("what is no JSON is a container")
			}
		}
	})
}

func FuzzControlGroup(f *testing.F) {
	f.Add("1000\n", "total_inactive_file 100\ninactive_file 7\n", "oom_kill 2\nusage_usec 3000\n", true)
	f.Add("-1", "active_file -5\n", "oom_kill -2\n", false)
	f.Add("5", "active_file 9223372036854775807\n", "usage_usec 9223372036854775807\n", true)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, number, stat, events string, v2 bool) {
		root := fstest.MapFS{}
		for name, text := range map[string]string{
			"memory.usage_in_bytes": number, "memory.current": number, "cpuacct.usage": number,
			"memory.stat": stat, "memory.events": events, "memory.oom_control": events, "cpu.stat": events,
		} {
			root["g/"+name] = &fstest.MapFile{Data: []byte(text)}
		}
		var u usage
		(&controlGroup{root: root, memory: "g", cpu: "g", v2: v2}).sample(&u)
		if u.peakBytes < 0 || u.oomKills < 0 || u.cpu < 0 {
			t.Errorf("usage %+v", u)
		}
	})
}

// TestPrune: what was pulled goes, with what was made of it; what was here before stays.
func TestPrune(t *testing.T) {
	c, calls := brokenRuntime(t, `
case "$1 $2" in
"image inspect")
  if [ "$3" = here ] || [ -e "$0.pulled" ]; then echo '[{"Id":"sha256:11","Config":{}}]'; else echo "Error: $3: image not known" >&2; exit 125; fi ;;
"pull there") touch "$0.pulled" ;;
"images --no-trunc") echo localhost/kiln-setup:22 ;;
esac`)
	for _, name := range []string{"here", "there"} {
		if _, err := c.Open(t.Context(), Spec{Name: "b", Owner: "o", Image: name}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][]string{"here": {"localhost/kiln-setup:22"}, "there": {"localhost/kiln-setup:22", "there"}} {
		removed, err := c.Prune(t.Context(), name)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, removed); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if !slices.Contains(calls(), "image rm there") || slices.Contains(calls(), "image rm here") {
		t.Errorf("calls: %q", calls())
	}
}
