// Command generate adds snapshots to the tables that are built into package audit:
//
//	go run ./audit/internal/generate torch==2.9.0
//	go run ./audit/internal/generate -windows torch==2.9.0
//	go run ./audit/internal/generate python-3.14-linux_x86_64-….kilnsnap
//
// It takes requirements of torch, whose wheels pip downloads, torch wheels, folders with an
// installed torch, and files of `kiln audit snapshot`. A release that is in its table already, for
// the same platform, is replaced. Run it in the root of the repository. KILN_PYTHON names the
// Python with pip, python3 otherwise.
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/audit/internal/table"
	"github.com/kiln-build/kiln/wheel"
)

func main() {
	windows := flag.Bool("windows", false, "download the wheels for Windows")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: go run ./audit/internal/generate [-windows] torch==VERSION|TORCH.whl|FOLDER|SNAPSHOT…")
		os.Exit(2)
	}
	platforms := []string{"manylinux_2_28_x86_64", "manylinux1_x86_64"} // torch was manylinux1 up to 2.6, by its tag
	if *windows {
		platforms = []string{"win_amd64"}
	}
	for _, source := range flag.Args() {
		if err := add(context.Background(), "audit/snapshots", source, platforms...); err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}

// add puts what source has into the table of its kind in dir. platforms are the tags of wheels that
// are downloaded.
func add(ctx context.Context, dir, source string, platforms ...string) error {
	if strings.HasPrefix(source, "torch==") {
		folder, err := os.MkdirTemp("", "kiln-torch-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		if source, err = download(ctx, folder, source, platforms); err != nil {
			return err
		}
	}
	s, err := audit.OpenSnapshot(ctx, source, audit.SnapshotOptions{})
	if err != nil {
		return err
	}
	var single bytes.Buffer
	if _, err := s.WriteTo(&single); err != nil {
		return err
	}
	added, err := releases(single.String())
	if err != nil {
		return err
	}
	file := filepath.Join(dir, s.Table()+".table")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	all, err := releases(string(data))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	all = slices.DeleteFunc(all, func(r table.Release) bool { return identity(r) == identity(added[0]) })
	all = append(all, added...)
	slices.SortStableFunc(all, func(a, b table.Release) int { return version(a).Compare(version(b)) })
	if data, err = table.Encode(all); err != nil {
		return err
	}
	if err := os.WriteFile(file, data, 0o666); err != nil {
		return err
	}
	fmt.Printf("%s: %s; %d releases, %d bytes\n", file, added[0].Label, len(all), len(data))
	return nil
}

// download fetches a wheel from the package index that pip is set up for, and returns its path.
func download(ctx context.Context, folder, requirement string, platforms []string) (string, error) {
	args := []string{
		"-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", folder,
		"--implementation", "cp", "--python-version", "3.12",
	}
	for _, platform := range platforms {
		args = append(args, "--platform", platform)
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("KILN_PYTHON"), "python3"), append(args, requirement)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pip download %s: %w", requirement, err)
	}
	wheels, err := filepath.Glob(filepath.Join(folder, "torch-*.whl"))
	if err == nil && len(wheels) != 1 {
		err = fmt.Errorf("pip download %s: %d wheels of torch, want 1", requirement, len(wheels))
	}
	if err != nil {
		return "", err
	}
	return wheels[0], nil
}

// releases reads a whole table.
func releases(data string) ([]table.Release, error) {
	t, err := table.Open(data)
	if err != nil {
		return nil, err
	}
	which := make([]int, len(t.Labels()))
	for i := range which {
		which[i] = i
	}
	return t.Read(which, nil)
}

// identity is a label without the digest: kind, version and platform.
func identity(r table.Release) string { return r.Label[:strings.LastIndex(r.Label, "-")] }

func version(r table.Release) wheel.Version {
	v, _ := wheel.ParseVersion(strings.Split(r.Label, "-")[1]) // versions of CPython have one, too
	return v
}
