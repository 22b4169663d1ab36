package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
)

// What can be wrong with an engine rather than with a command. Every [EngineError] that is one of them says what to do next.
var (
	// ErrNoEngine means that the engine's program is not there.
	ErrNoEngine = errors.New("container engine not found")
	// ErrEngineDown means that the engine's service does not answer, or not to this user.
	ErrEngineDown = errors.New("container engine not reachable")
	// ErrNoImage means that an image is neither here nor in its registry.
	ErrNoImage = errors.New("image not found")
)

// EngineError is a call of a container engine that did not succeed.
type EngineError struct {
	Engine string // "podman" or "docker"
	Action string // "pull debian:13"
	Output string // what the engine printed, without the first "Error:"
	Next   string // what the user can do, if that is known
	Err    error  // ErrNoEngine, ErrEngineDown, ErrNoImage, or how the program ended
}

// Error returns the action, the engine's own last line and the next step.
func (e *EngineError) Error() string {
	said := e.Output
	if i := strings.LastIndexByte(said, '\n'); i >= 0 {
		said = said[i+1:]
	}
	if said == "" {
		said = e.Err.Error()
	}
	text := fmt.Sprintf("%s: %s: %s", e.Engine, e.Action, said)
	if e.Next != "" {
		text += "; " + e.Next
	}
	return text
}

// Unwrap returns Err.
func (e *EngineError) Unwrap() error { return e.Err }

// engineSigns are the words by which an engine's message is recognized, in lower case, most special first.
var engineSigns = []struct {
	words []string
	err   error
	next  map[string]string // by engine; "" for both
}{
	{
		[]string{"permission denied while trying to connect"},
		ErrEngineDown,
		map[string]string{"": "add yourself to the group that owns its socket (docker), or use podman, which needs no service"},
	},
	{
		[]string{"cannot connect to the docker daemon", "cannot connect to podman", "error during connect", "unable to connect to podman", "is the docker daemon running", "failed to connect to the docker api"},
		ErrEngineDown,
		map[string]string{
			"docker": "start its service (systemctl start docker), or use podman, which needs none",
			"podman": "start its machine (podman machine start)",
		},
	},
	{
		[]string{"manifest unknown", "no such image", "image not known", "name unknown", "not found: manifest", "repository does not exist", "requested access to the resource is denied", "unauthorized", "did not resolve to an alias", "invalid reference format"},
		ErrNoImage,
		map[string]string{"": "check the name and tag, log in to the registry if it is private, or load the image from an archive"},
	},
	{
		[]string{"error setting rlimit"},
		nil,
		map[string]string{"": "this machine lets containers have fewer open files or processes than asked for: give the engine arguments such as --ulimit nofile=1024:1024 --ulimit nproc=1000:1000"},
	},
	{
		[]string{"/usr/bin/env"},
		nil,
		map[string]string{"": "the image has no /usr/bin/env: use one with a shell and coreutils or busybox"},
	},
	{
		[]string{"slirp4netns", "pasta", "netavark", "cni plugin", "iptables"},
		nil,
		map[string]string{"": "the engine cannot make a network here: use the network of the host"},
	},
	{
		[]string{"no space left on device"},
		nil,
		map[string]string{"": "free disk space; images that nothing uses go with its \"image prune\""},
	},
}

// newEngineError explains a failed call from what the engine printed.
func newEngineError(engine, action, output string, err error) *EngineError {
	e := &EngineError{Engine: engine, Action: action, Output: strings.TrimPrefix(strings.TrimSpace(output), "Error: "), Err: err}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		e.Err, e.Next = ErrNoEngine, "install "+engine+", name its path, or build on the host"
		return e
	}
	low := strings.ToLower(e.Output)
	for _, sign := range engineSigns {
		for _, word := range sign.words {
			if !strings.Contains(low, word) {
				continue
			}
			if sign.err != nil {
				e.Err = sign.err
			}
			e.Next = sign.next[engine]
			if e.Next == "" {
				e.Next = sign.next[""]
			}
			return e
		}
	}
	return e
}

// isGone reports whether an engine says that a container does not exist, or is being removed by someone else.
func isGone(output string) bool {
	low := strings.ToLower(output)
	return strings.Contains(low, "no such container") || strings.Contains(low, "no container with name or id") ||
		strings.Contains(low, "is already in progress")
}

// lacksInit reports whether an engine says that it has no program for --init.
func lacksInit(output string) bool {
	return strings.Contains(output, "container-init binary not found") || strings.Contains(output, "docker-init")
}
