package secret

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// secretNames are the variables that kiln itself reads, and those of the places it runs in, whose
// value is a secret. This list and secretEndings are the one place that says so.
var secretNames = []string{
	"KILN_TOKEN", "KILN_CACHE_TOKEN", "KILN_CACHE_PASSWORD", HandoverEnv,
	"GITHUB_TOKEN", "GH_TOKEN", "ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
	"DOCKER_AUTH_CONFIG",
}

// secretPrefixes and secretEndings are names that others use for such values.
var (
	secretPrefixes = []string{"KILN_TOKEN_"}
	secretEndings  = []string{"_TOKEN", "_PASSWORD", "_PASSWD", "_PASSPHRASE", "_SECRET", "_SECRET_KEY", "_ACCESS_KEY", "_API_KEY", "_PRIVATE_KEY", "_SIGN_KEY", "_SIGNING_KEY"}
)

// isSecretName reports whether the value of a variable is a secret.
func isSecretName(name string) bool {
	upper := strings.ToUpper(name)
	return slices.Contains(secretNames, upper) ||
		slices.ContainsFunc(secretPrefixes, func(p string) bool { return strings.HasPrefix(upper, p) }) ||
		slices.ContainsFunc(secretEndings, func(e string) bool { return strings.HasSuffix(upper, e) })
}

// collect takes the secrets out of arguments and environment. What is left has addresses without
// credentials in the place of those with; variables that are secrets are gone.
func collect(args, env []string) (s *Store, cleanArgs, cleanEnv []string) {
	s = &Store{env: map[string]string{}}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if isSecretName(name) {
			if value != "" {
				s.env[name] = value
			}
			if name == HandoverEnv {
				var list []string
				if json.Unmarshal([]byte(value), &list) == nil {
					for _, full := range list {
						s.Add(Parse(full))
					}
				}
				delete(s.env, name)
			}
			continue
		}
		if clean, found := Extract(value); len(found) > 0 {
			s.env[name] = value
			s.Add(found...)
			kv = name + "=" + clean
		}
		cleanEnv = append(cleanEnv, kv)
	}
	for _, arg := range args {
		cleanArgs = append(cleanArgs, s.Take(arg))
	}
	return s, cleanArgs, cleanEnv
}

// Collect returns the secrets of arguments and of the environment, and the arguments without them,
// and leaves the process as it is. Programs call [Main]; this is for those that are called inside
// another.
func Collect(args []string) (*Store, []string) {
	s, clean, _ := collect(args, os.Environ())
	return s, clean
}

// passed is what one image of the process hands to the next.
type passed struct {
	URLs []string          `json:"urls"`
	Env  map[string]string `json:"env"`
}

// fdEnv names the descriptor that a [passed] is read from.
const fdEnv = "KILN_SECRETS_FD"

// maxPassed fits into a pipe that nothing reads yet, on every system.
const maxPassed = 16 << 10

// Main takes the secrets of this process out of its environment and its arguments, where every
// process of the same user could read them for as long as it runs (on Linux in /proc/PID/environ
// and /proc/PID/cmdline), and returns them. It is called first, by the main goroutine.
//
// An environment cannot be changed from inside as others see it, so on Unix the process replaces
// itself by the same program without the secrets, which it gets through a pipe; that costs one more
// start, and only if there are secrets. On Windows they are only kept from children.
func Main() (*Store, error) {
	if text := os.Getenv(fdEnv); text != "" {
		s, err := receive(text)
		if err != nil {
			return nil, fmt.Errorf("take over credentials: %w", err)
		}
		protect()
		return s, nil
	}
	s, args, env := collect(os.Args, os.Environ())
	if len(s.env) == 0 && len(s.urls) == 0 {
		return s, nil
	}
	var p passed
	for _, u := range s.urls {
		p.URLs = append(p.URLs, u.full)
	}
	p.Env = s.env
	text, err := json.Marshal(p)
	if err == nil && len(text) > maxPassed {
		// Those of others are kept from children in any case, and kiln reads none of them.
		maps.DeleteFunc(p.Env, func(name, _ string) bool { return isSecretName(name) && !slices.Contains(secretNames, name) })
		text, err = json.Marshal(p)
	}
	if err != nil {
		return nil, err
	}
	if len(text) > maxPassed {
		return nil, fmt.Errorf("the credentials in the environment have %d bytes, and kiln takes up to %d; leave out what it does not need", len(text), maxPassed)
	}
	if err := replaceProcess(text, args, env); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("take credentials out of the environment: %w", err)
	}
	// Here only where a process cannot replace itself.
	for name := range s.env {
		value := ""
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				value = v
			}
		}
		err := os.Unsetenv(name)
		if err == nil && value != "" {
			err = os.Setenv(name, value)
		}
		if err != nil {
			return nil, err
		}
	}
	os.Args = args
	return s, nil
}

// restore makes a store of what was handed over.
func (p passed) restore() *Store {
	s := &Store{env: p.Env}
	for _, full := range p.URLs {
		s.Add(Parse(full))
	}
	return s
}
