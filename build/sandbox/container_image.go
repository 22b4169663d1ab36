package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

const (
	pullAttempts = 3
	pullLimit    = 10 * time.Minute // for one attempt
	pullPause    = 5 * time.Second  // after the first, twice that after the second
	setupRepo    = "localhost/kiln-setup"
)

// image is what a runtime knows about an image that is here.
type image struct {
	ID          string `json:"Id"`
	RepoDigests []string
	Config      struct{ Env []string }
}

// pin returns the name by which exactly this image can be had again, from a registry if it came
// from one.
func (i image) pin(name string) string {
	repo, _, _ := strings.Cut(name, "@")
	if colon := strings.LastIndexByte(repo, ':'); colon > strings.LastIndexByte(repo, '/') {
		repo = repo[:colon]
	}
	for _, digest := range i.RepoDigests {
		// Runtimes write short names out: debian is docker.io/library/debian.
		if from, _, _ := strings.Cut(digest, "@"); from == repo || strings.HasSuffix(from, "/"+repo) {
			return digest
		}
	}
	return i.ID
}

// parseImage reads the answer of image inspect.
func parseImage(data []byte) (image, error) {
	var list []image
	if err := json.Unmarshal(data, &list); err != nil {
		return image{}, err
	}
	if len(list) != 1 || list[0].ID == "" {
		return image{}, fmt.Errorf("%d images with an ID instead of one", len(list))
	}
	img := list[0]
	if !strings.HasPrefix(img.ID, "sha256:") {
		img.ID = "sha256:" + img.ID // podman
	}
	return img, nil
}

// inspectImage returns an error that is ErrNoImage if the image is not here.
func (c *Containers) inspectImage(ctx context.Context, name string) (image, error) {
	text, err := c.call(ctx, "look at image "+name, nil, "image", "inspect", name)
	if err != nil {
		return image{}, err
	}
	img, err := parseImage([]byte(text))
	if err != nil {
		return image{}, fmt.Errorf("%s: look at image %s: %w", c.opts.Runtime, name, err)
	}
	return img, nil
}

// image returns an image, and pulls it if it is not here. Many may ask for one image at once.
func (c *Containers) image(ctx context.Context, name string, log io.Writer) (image, error) {
	img, err := c.inspectImage(ctx, name)
	if err == nil || !errors.Is(err, ErrNoImage) {
		return img, err
	}
	if strings.HasPrefix(name, "localhost/") {
		// No registry has it: the name means "made here".
		if err, ok := errors.AsType[*RuntimeError](err); ok {
			err.Next = "it is an image of this machine: make it or load it from an archive first"
		}
		return image{}, err
	}
	unlock, err := c.locks.lock(ctx, "pull "+name)
	if err != nil {
		return image{}, err
	}
	defer unlock()
	if img, err := c.inspectImage(ctx, name); err == nil {
		return img, nil
	}
	if err := c.pull(ctx, name, log); err != nil {
		return image{}, err
	}
	c.mu.Lock()
	if c.pulled == nil {
		c.pulled = map[string]bool{}
	}
	c.pulled[name] = true
	c.mu.Unlock()
	return c.inspectImage(ctx, name)
}

// Prune implements [Pruner].
func (c *Containers) Prune(ctx context.Context, name string) (removed []string, err error) {
	base, err := c.inspectImage(ctx, name)
	if errors.Is(err, ErrNoImage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := c.call(ctx, "list images", nil, "images", "--no-trunc", "--filter", "label="+labelBase+"="+base.ID, "--format", "{{.Repository}}:{{.Tag}}")
	if err != nil {
		return nil, err
	}
	names := strings.Fields(text)
	c.mu.Lock()
	if c.pulled[name] {
		names = append(names, name)
		delete(c.pulled, name)
	}
	c.mu.Unlock()
	for _, image := range names {
		// Without force: a container that uses it keeps it.
		if _, bad := c.call(ctx, "remove image "+image, nil, "image", "rm", image); bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		removed = append(removed, image)
	}
	return removed, err
}

// pull tries again what the network may have broken.
func (c *Containers) pull(ctx context.Context, name string, log io.Writer) error {
	for attempt := 1; ; attempt++ {
		err := c.pullOnce(ctx, name, log)
		if err == nil {
			return nil
		}
		final := ctx.Err() != nil || errors.Is(err, ErrNoImage) || errors.Is(err, ErrNoRuntime) || errors.Is(err, ErrRuntimeDown)
		if final || attempt == pullAttempts {
			return fmt.Errorf("%w (attempt %d of %d)", err, attempt, pullAttempts)
		}
		c.log.Warn("pull did not succeed", "image", name, "attempt", attempt, "err", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(attempt) * pullPause):
		}
	}
}

func (c *Containers) pullOnce(ctx context.Context, name string, log io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pullLimit, fmt.Errorf("more than %v", pullLimit))
	defer cancel()
	cmd := c.command(ctx, "", "pull", name)
	// The runtime itself goes through the proxy here.
	cmd.Env = slices.Concat(cmd.Environ(), c.opts.NetworkEnv)
	_, err := c.finish(ctx, cmd, "pull "+name, log)
	return err
}

// setupTag names the image that commands make of another. The digest has all that decides its
// content.
func setupTag(baseID string, setup [][]string) (tag, digest string) {
	hash := sha256.New()
	enc := json.NewEncoder(hash)
	for _, part := range []any{"kiln setup 1", baseID, setup} {
		if err := enc.Encode(part); err != nil {
			panic(err) // strings always encode
		}
	}
	digest = hex.EncodeToString(hash.Sum(nil))
	return setupRepo + ":" + digest[:32], digest
}

// setupImage returns the ID of the image that spec.Setup makes of base, and makes it if it does not
// exist yet.
func (c *Containers) setupImage(ctx context.Context, base image, spec Spec) (string, error) {
	tag, digest := setupTag(base.ID, spec.Setup)
	if img, err := c.inspectImage(ctx, tag); err == nil || !errors.Is(err, ErrNoImage) {
		return img.ID, err
	}
	unlock, err := c.locks.lock(ctx, tag)
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.opts.LockDir != "" {
		if err := os.MkdirAll(c.opts.LockDir, 0o777); err != nil {
			return "", err
		}
		lock, err := fsx.Lock(ctx, filepath.Join(c.opts.LockDir, "setup-"+digest[:32]+".lock"))
		if err != nil {
			return "", err
		}
		defer lock.Unlock() //nolint:errcheck // It ends with this process at the latest.
	}
	if img, err := c.inspectImage(ctx, tag); err == nil {
		return img.ID, nil
	}
	if err := c.runSetup(ctx, base, spec, tag, digest); err != nil {
		return "", fmt.Errorf("set up %s: %w", spec.Image, err)
	}
	img, err := c.inspectImage(ctx, tag)
	return img.ID, err
}

// runSetup runs all commands in one container, which waits meanwhile, and keeps what they made.
func (c *Containers) runSetup(ctx context.Context, base image, spec Spec, tag, digest string) (err error) {
	log := spec.Log
	if log == nil {
		log = io.Discard
	}
	plain, secrets := c.networkEnv()
	env := mergeEnv([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"},
		base.Config.Env, plain, []string{"DEBIAN_FRONTEND=noninteractive"})
	k := container{
		name: newName(spec.Owner, "setup-"+spec.Name), owner: spec.Owner, box: spec.Name, image: base.ID, user: "0:0", dir: "/",
		env: env, argv: []string{"sleep", "infinity"}, network: c.networkName(true), mounts: c.networkMounts(),
		memoryBytes: spec.MemoryBytes, pids: spec.PIDs, cpus: spec.CPUs,
		// What a package manager needs: it changes owners, and drops its rights to download.
		caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT"},
	}
	defer func() { err = errors.Join(err, c.remove(ctx, k.name)) }()
	if _, err := c.create(ctx, k); err != nil {
		return err
	}
	if _, err := c.callAs(ctx, spec.Owner, "start container "+k.name, log, "start", k.name); err != nil {
		return err
	}
	for _, argv := range spec.Setup {
		fmt.Fprintf(log, "setup: %q\n", argv)
		out := newBoxOutput(Command{Stdout: log, Secrets: secrets})
		step := container{argv: argv, secrets: secrets}
		args := []string{"exec"}
		if len(secrets) > 0 {
			args = append(args, "--interactive")
		}
		cmd := c.command(ctx, spec.Owner, slices.Concat(args, []string{k.name, "/usr/bin/env", "-i"}, env, step.command())...)
		if len(secrets) > 0 {
			cmd.Stdin = secretInput(secrets)
		}
		cmd.Stdout, cmd.Stderr = out.writers()
		err := cmd.Run()
		out.flush()
		if ctx.Err() != nil {
			return fmt.Errorf("run %q: %w", argv, context.Cause(ctx))
		} else if err != nil {
			return fmt.Errorf("run %q: %w: %s", argv, err, strings.Join(out.tail(), "\n"))
		}
	}
	if _, err := c.callAs(ctx, spec.Owner, "stop container "+k.name, log, "kill", k.name); err != nil {
		return err
	}
	if _, err := c.callAs(ctx, spec.Owner, "wait for container "+k.name, log, "wait", k.name); err != nil {
		return err
	}
	args := []string{"commit"}
	for _, change := range []string{
		"LABEL " + labelSetup + "=" + digest, "LABEL " + labelBase + "=" + base.ID,
		"LABEL " + labelOwner + "=", "LABEL " + labelBox + "=", "ENTRYPOINT []", `CMD ["/bin/sh"]`,
	} {
		args = append(args, "--change", change)
	}
	_, err = c.callAs(ctx, spec.Owner, "keep container "+k.name, log, append(args, k.name, tag)...)
	return err
}

// mergeEnv joins environments; the last of equal keys counts and stands where the first one stood.
func mergeEnv(lists ...[]string) []string {
	var env []string
	at := map[string]int{}
	for _, list := range lists {
		for _, kv := range list {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := at[key]; ok {
				env[i] = kv
				continue
			}
			at[key] = len(env)
			env = append(env, kv)
		}
	}
	return env
}
