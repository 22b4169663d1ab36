package sandboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/build/sandbox/sandboxtest"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
)

// driverEnv makes this program a driver of the sandboxes that it names.
const driverEnv = "KILN_BOXTEST_DRIVER"

// image is small, and made by dev/e2e/images.sh.
const image = "localhost/kiln-e2e/ci"

func sandboxes(name string) sandbox.Maker {
	if name == "host" {
		return sandbox.Host(sandbox.HostOptions{})
	}
	return sandbox.Container(sandbox.ContainerOptions{Runtime: name})
}

func TestMain(m *testing.M) {
	run.Main()
	if name := os.Getenv(driverEnv); name != "" {
		if err := sandboxtest.Drive(context.Background(), sandboxes(name), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func driver(name string) func(*testing.T) *exec.Cmd {
	return func(t *testing.T) *exec.Cmd {
		t.Helper()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), driverEnv+"="+name)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}
}

func killGroup(driver *exec.Cmd) error { return syscall.Kill(-driver.Process.Pid, syscall.SIGKILL) }

func TestHost(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Sandboxes: sandboxes("host"), Hides: sandbox.HidesProcesses() == nil || kilntest.Required("pidns"), Driver: driver("host"), KillGroup: killGroup,
		Left: func(t *testing.T, owner, _ string) []string {
			t.Helper()
			return processes(t, "KILN_BOX_OWNER="+owner)
		},
	})
}

// processes lists those that were started with a variable, and have not ended.
func processes(t *testing.T, kv string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(data), "\x00"), kv) {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline")); err == nil {
			found = append(found, file+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// podman skips the test if it cannot run a container of the image.
func podman(t *testing.T) sandbox.Maker {
	t.Helper()
	boxes := sandboxes("podman")
	box, err := boxes.Open(t.Context(), sandbox.Spec{Name: "probe", Owner: "sandboxtest probe", Image: image})
	switch {
	case errors.Is(err, sandbox.ErrNoRuntime):
		kilntest.Lacking(t, "podman", "no podman: dev/scripts/podman.sh installs it")
	case errors.Is(err, sandbox.ErrNoImage):
		kilntest.Lacking(t, "podman", "no image %s: dev/e2e/images.sh ci makes it", image)
	case err != nil:
		kilntest.Lacking(t, "podman", "podman does not work here: %v", err)
	}
	if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"true"}, Env: []string{sandboxtest.PATH}}); err != nil {
		kilntest.Lacking(t, "podman", "podman does not work here: %v", err)
	}
	return boxes
}

func command(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return string(out)
}

func TestPodman(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Suite{
		Sandboxes: podman(t), Image: image, Isolated: true, Hides: true, Limits: true, Driver: driver("podman"), KillGroup: killGroup,
		Left: func(t *testing.T, owner, box string) []string {
			t.Helper()
			left := processes(t, "KILN_BOX_OWNER="+owner)
			for line := range strings.Lines(command(t, "podman", "ps", "--all", "--external", "--format", "{{.Names}} {{.Status}}")) {
				if strings.Contains(line, "-"+box+"-") {
					left = append(left, strings.TrimSpace(line))
				}
			}
			return left
		},
	})
}

func TestPodmanSetup(t *testing.T) {
	podman(t)
	// As in a new project: nothing is there yet.
	boxes := sandbox.Container(sandbox.ContainerOptions{Runtime: "podman", LockDir: filepath.Join(t.TempDir(), ".kiln", "locks")})
	before := command(t, "podman", "images", "--quiet", "--filter", "reference=localhost/kiln-setup")
	t.Cleanup(func() {
		for id := range strings.FieldsSeq(command(t, "podman", "images", "--quiet", "--filter", "reference=localhost/kiln-setup")) {
			if !strings.Contains(before, id) {
				command(t, "podman", "image", "rm", "--force", id)
			}
		}
	})
	dir := t.TempDir()
	spec := sandbox.Spec{
		Name: "setup", Owner: "sandboxtest setup", Image: image, Mounts: []sandbox.Mount{{Host: dir, Inside: "/inside"}},
		Setup: [][]string{{"sh", "-c", "id -u >/id; cat /proc/sys/kernel/random/uuid >/made"}, {"test", "-s", "/made"}, {"true", dir}},
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			spec := spec
			spec.Name += strconv.Itoa(i)
			box, err := boxes.Open(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			var out bytes.Buffer
			if _, err := box.Run(t.Context(), sandbox.Command{Argv: []string{"cat", "/id", "/made"}, Env: []string{sandboxtest.PATH}, Stdout: &out}); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[out.String()] = true
			if !strings.Contains(box.Image(), "sha256:") {
				t.Errorf("image %q is not pinned", box.Image())
			}
		})
	}
	all.Wait()
	if len(seen) != 1 {
		t.Errorf("the setup of one image was made %d times: %v", len(seen), seen)
	}
	for text := range seen {
		if !strings.HasPrefix(text, "0\n") {
			t.Errorf("the setup did not run as root: %q", text)
		}
	}

	var log bytes.Buffer
	spec.Setup = [][]string{{"sh", "-c", "echo the reason; exit 7", dir}}
	spec.Log = &log
	_, err := boxes.Open(t.Context(), spec)
	if err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(log.String(), "the reason") {
		t.Errorf("error %v, log %q", err, &log)
	}
	if left := command(t, "podman", "ps", "--all", "--external", "--format", "{{.Names}}"); strings.Contains(left, "-setup") {
		t.Errorf("left behind: %s", left)
	}
}

func TestPodmanErrors(t *testing.T) {
	boxes := podman(t)
	_, err := boxes.Open(t.Context(), sandbox.Spec{Name: "missing", Owner: "sandboxtest", Image: "localhost/kiln-e2e/there-is-none"})
	if !errors.Is(err, sandbox.ErrNoImage) || !strings.Contains(err.Error(), "there-is-none") || !strings.Contains(err.Error(), "make it or load it") {
		t.Errorf("image that is not there: %v", err)
	}
	box, err := boxes.Open(t.Context(), sandbox.Spec{
		Name: "mount", Owner: "sandboxtest", Image: image, Mounts: []sandbox.Mount{{Host: filepath.Join(t.TempDir(), "none"), Inside: "/inside"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = box.Run(t.Context(), sandbox.Command{Argv: []string{"true"}, Stdout: io.Discard})
	if runtime, ok := errors.AsType[*sandbox.RuntimeError](err); !ok || !strings.Contains(runtime.Output, "none") {
		t.Errorf("mount of a folder that is not there: %v", err)
	}
}
