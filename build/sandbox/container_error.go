package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
)

// What can be wrong with a runtime rather than with a command. Every [RuntimeError] that is one of
// them says what to do next.
var (
	// ErrNoRuntime means that the runtime's program is not there.
	ErrNoRuntime = errors.New("container runtime not found")
	// ErrRuntimeDown means that the runtime's service does not answer, or not to this user.
	ErrRuntimeDown = errors.New("container runtime not reachable")
	// ErrNoImage means that an image is neither here nor in its registry.
	ErrNoImage = errors.New("image not found")
)

// RuntimeError is a call of a container runtime that did not succeed.
type RuntimeError struct {
	Runtime string // "podman" or "docker"
	Action  string // "pull debian:13"
	Output  string // what the runtime printed, without the first "Error:"
	Next    string // what the user can do, if that is known
	Err     error  // ErrNoRuntime, ErrRuntimeDown, ErrNoImage, or how the program ended
}

// Error returns the action, the runtime's own last line and the next step.
func (e *RuntimeError) Error() string {
	said := e.Output
	if i := strings.LastIndexByte(said, '\n'); i >= 0 {
		said = said[i+1:]
	}
	if said == "" {
		said = e.Err.Error()
	}
	text := fmt.Sprintf("%s: %s: %s", e.Runtime, e.Action, said)
	if e.Next != "" {
		text += "; " + e.Next
	}
	return text
}

// Unwrap returns Err.
func (e *RuntimeError) Unwrap() error { return e.Err }

// runtimeSigns are the words by which a runtime's message is recognized, in lower case, most
// special first.
var runtimeSigns = []struct {
	words []string
	err   error
	next  map[string]string // by runtime; "" for both
}{
	{
		[]string{"permission denied while trying to connect"},
		ErrRuntimeDown,
		map[string]string{"": "add yourself to the group that owns its socket (docker), or use podman, which needs no service"},
	},
	{
		[]string{"cannot connect to the docker daemon", "cannot connect to podman", "error during connect", "unable to connect to podman", "is the docker daemon running", "failed to connect to the docker api"},
		ErrRuntimeDown,
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
		map[string]string{"": "this machine lets containers have fewer open files or processes than asked for: give the runtime arguments such as --ulimit nofile=1024:1024 --ulimit nproc=1000:1000"},
	},
	{
		[]string{"/usr/bin/env"},
		nil,
		map[string]string{"": "the image has no /usr/bin/env: use one with a shell and coreutils or busybox"},
	},
	{
		[]string{"slirp4netns", "pasta", "netavark", "cni plugin", "iptables"},
		nil,
		map[string]string{"": "the runtime cannot make a network here: use the network of the host"},
	},
	{
		[]string{"no space left on device"},
		nil,
		map[string]string{"": "free disk space; images that nothing uses go with its \"image prune\""},
	},
}

// newRuntimeError explains a failed call from what the runtime printed.
func newRuntimeError(runtime, action, output string, err error) *RuntimeError {
	e := &RuntimeError{Runtime: runtime, Action: action, Output: strings.TrimPrefix(strings.TrimSpace(output), "Error: "), Err: err}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		e.Err, e.Next = ErrNoRuntime, "install "+runtime+", name its path, or build on the host"
		return e
	}
	low := strings.ToLower(e.Output)
	for _, sign := range runtimeSigns {
		for _, word := range sign.words {
			if !strings.Contains(low, word) {
				continue
			}
			if sign.err != nil {
				e.Err = sign.err
			}
			e.Next = sign.next[runtime]
			if e.Next == "" {
				e.Next = sign.next[""]
			}
			return e
		}
	}
	return e
}

// isGone reports whether a runtime says that a container does not exist, or is being removed by
// someone else.
func isGone(output string) bool {
	low := strings.ToLower(output)
	return strings.Contains(low, "no such container") || strings.Contains(low, "no container with name or id") ||
		strings.Contains(low, "is already in progress")
}

// lacksInit reports whether a runtime says that it has no program for --init.
func lacksInit(output string) bool {
	return strings.Contains(output, "container-init binary not found") || strings.Contains(output, "docker-init")
}
