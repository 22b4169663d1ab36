package workflow

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // fingerprints of OpenPGP keys of version 4 are SHA-1
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/publish"
)

const (
	// rocmSource is AMD's server of packages.
	rocmSource = "https://repo.radeon.com"
	// rocmKey is the fingerprint of the key that signs them.
	rocmKey = "CA8BB4727A47B4D09B4EE8969386B48A1A693C5C"
	// rocmPackage has the compiler and every library with its headers.
	rocmPackage = "rocm-hip-sdk"
)

// ROCmOptions are options of [InstallROCm].
type ROCmOptions struct {
	// Version is that of ROCm, 6.1 or 6.2.4.
	Version string
	// Source is the address of the packages. Default AMD's.
	Source string
	// Fingerprint is that of the key that signs them, in hexadecimal. Default AMD's.
	Fingerprint string
	// Root is where the system is; default /. Only files are looked for and written there.
	Root string
	// Env is the environment of commands, Output gets what they print.
	Env    []string
	Output io.Writer
	// Run runs a command as the administrator; nil means as this user or through sudo.
	Run func(ctx context.Context, argv ...string) error
	// Client carries the requests; nil means the usual one.
	Client *http.Client
	Retry  publish.Retry
}

// InstallROCm installs the HIP SDK of a ROCm release on an Ubuntu system, from its vendor's
// repository for that release and that system. It returns the folder with bin/hipcc in it. A
// release that is there already is left alone.
func InstallROCm(ctx context.Context, opts ROCmOptions) (home string, err error) {
	root := cmp.Or(opts.Root, "/")
	for _, dir := range []string{"/opt/rocm-" + opts.Version, "/opt/rocm-" + opts.Version + ".0"} {
		if _, err := os.Stat(filepath.Join(root, dir, "bin", "hipcc")); err == nil {
			return dir, nil
		}
	}
	release, err := osRelease(filepath.Join(root, "etc", "os-release"))
	if err != nil {
		return "", err
	}
	if release["ID"] != "ubuntu" || release["VERSION_CODENAME"] == "" {
		return "", fmt.Errorf("AMD's packages of ROCm are for Ubuntu, and this is %s: build the row in an image, without --runner host", cmp.Or(release["PRETTY_NAME"], "another system"))
	}
	if opts.Run == nil {
		opts.Run = func(ctx context.Context, argv ...string) error {
			if os.Geteuid() != 0 {
				argv = append([]string{"sudo", "-n"}, argv...)
			}
			c := run.Cmd{Argv: argv, Env: opts.Env, Stdout: opts.Output, Stderr: opts.Output}
			_, err := c.Run(ctx)
			return err
		}
	}
	client := opts.Client
	if client == nil {
		client = &http.Client{Timeout: 5 * time.Minute}
	}
	source := strings.TrimSuffix(cmp.Or(opts.Source, rocmSource), "/")
	suite := release["VERSION_CODENAME"]
	rocm := source + "/rocm/apt/" + opts.Version
	has := func(repository string) error {
		return opts.Retry.Get(ctx, client, repository+"/dists/"+suite+"/Release", func(body io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(body, 1<<20))
			return err
		})
	}
	if err := has(rocm); err != nil {
		return "", fmt.Errorf("ROCm %s for %s (%s): %w: build the row in an image, or on a runner with another Ubuntu", opts.Version, release["PRETTY_NAME"], suite, err)
	}
	repositories := []string{rocm}
	// Libraries of the graphics driver, which newer releases need. Where they are has changed.
	for _, name := range []string{"amdgpu", "graphics"} {
		if driver := source + "/" + name + "/" + opts.Version + "/ubuntu"; has(driver) == nil {
			repositories = append(repositories, driver)
			break
		}
	}
	var key []byte
	err = opts.Retry.Get(ctx, client, source+"/rocm/rocm.gpg.key", func(body io.Reader) error {
		key, err = io.ReadAll(io.LimitReader(body, 1<<20))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("the key of ROCm's packages: %w", err)
	}
	got, err := keyFingerprint(key)
	if err != nil {
		return "", fmt.Errorf("the key of ROCm's packages: %w", err)
	}
	if want := cmp.Or(opts.Fingerprint, rocmKey); !strings.EqualFold(got, strings.ReplaceAll(want, " ", "")) {
		return "", fmt.Errorf("the key of ROCm's packages is %s, want %s", got, want)
	}
	const keyring = "/etc/apt/keyrings/kiln-rocm.asc"
	var list strings.Builder
	for _, r := range repositories {
		fmt.Fprintf(&list, "deb [arch=amd64 signed-by=%s] %s %s main\n", keyring, r, suite)
	}
	host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(source, "https://"), "http://"), "/")
	host, _, _ = strings.Cut(host, ":")
	for _, f := range []struct{ path, text string }{
		{keyring, string(key)},
		{"/etc/apt/sources.list.d/kiln-rocm.list", list.String()},
		// The distribution has packages of the same names.
		{"/etc/apt/preferences.d/kiln-rocm", "Package: *\nPin: origin " + host + "\nPin-Priority: 600\n"},
	} {
		if err := installFile(ctx, opts.Run, filepath.Join(root, f.path), f.text); err != nil {
			return "", err
		}
	}
	for _, argv := range [][]string{
		{"apt-get", "-q", "-o", "Acquire::Retries=3", "update"},
		{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "Acquire::Retries=3", "install", "--no-install-recommends", rocmPackage},
	} {
		if err := opts.Run(ctx, argv...); err != nil {
			return "", err
		}
	}
	for _, dir := range []string{"/opt/rocm-" + opts.Version, "/opt/rocm-" + opts.Version + ".0", "/opt/rocm"} {
		if _, err := os.Stat(filepath.Join(root, dir, "bin", "hipcc")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s is installed, and there is no hipcc below /opt/rocm", rocmPackage)
}

// installFile writes a file that belongs to the administrator.
func installFile(ctx context.Context, run func(context.Context, ...string) error, path, text string) error {
	f, err := os.CreateTemp("", "kiln-rocm")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(text); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return run(ctx, "install", "-D", "-m", "0644", f.Name(), path)
}

// osRelease reads os-release.
func osRelease(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok {
			out[name] = strings.Trim(value, `"'`)
		}
	}
	return out, nil
}

// keyFingerprint returns the fingerprint of the first key in a file of OpenPGP keys, armored or
// not, of version 4 (RFC 4880, section 12.2).
func keyFingerprint(text []byte) (string, error) {
	data := text
	if begin := bytes.Index(text, []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----")); begin >= 0 {
		var body strings.Builder
		headers := true
		for line := range strings.Lines(string(text[begin:])) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "-----BEGIN"):
			case headers:
				headers = line != "" // they end with an empty line
			case strings.HasPrefix(line, "=") || strings.HasPrefix(line, "-----"):
				goto decode
			default:
				body.WriteString(line)
			}
		}
	decode:
		var err error
		if data, err = base64.StdEncoding.DecodeString(body.String()); err != nil {
			return "", fmt.Errorf("no OpenPGP key: %w", err)
		}
	}
	packet, err := publicKeyPacket(data)
	if err != nil {
		return "", err
	}
	head := binary.BigEndian.AppendUint16([]byte{0x99}, uint16(len(packet)))
	sum := sha1.Sum(append(head, packet...)) //nolint:gosec // what a fingerprint is
	return strings.ToUpper(hex.EncodeToString(sum[:])), nil
}

var errNoKey = errors.New("no OpenPGP public key of version 4")

// publicKeyPacket is the body of the packet that a key begins with.
func publicKeyPacket(data []byte) ([]byte, error) {
	if len(data) < 3 || data[0]&0x80 == 0 {
		return nil, errNoKey
	}
	tag, length, at := 0, 0, 0
	if data[0]&0x40 != 0 { // the new format
		tag = int(data[0] & 0x3f)
		switch n := int(data[1]); {
		case n < 192:
			length, at = n, 2
		case n < 224:
			length, at = (n-192)<<8+int(data[2])+192, 3
		default:
			return nil, errNoKey // longer than any key, or in parts
		}
	} else {
		tag = int(data[0] >> 2 & 0x0f)
		switch data[0] & 3 {
		case 0:
			length, at = int(data[1]), 2
		case 1:
			length, at = int(binary.BigEndian.Uint16(data[1:])), 3
		default:
			return nil, errNoKey
		}
	}
	if tag != 6 || length < 6 || len(data) < at+length || data[at] != 4 {
		return nil, errNoKey
	}
	return data[at : at+length], nil
}
