package exl2

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// compileFixture is what the command does: inventory, plan, write.
func compileFixture(t testing.TB, fx *fixture, plan PlanOptions, write WriteOptions) error {
	t.Helper()
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work})
	if err := ps.Err(); err != nil {
		return err
	}
	p, err := inv.Plan(plan)
	if err != nil {
		return err
	}
	_, err = Write(t.Context(), p, write)
	return err
}

func asProblems(err error) (Problems, bool) {
	var ps Problems
	ok := errors.As(err, &ps)
	return ps, ok
}

// diffDirs returns the first difference between two flat folders: names, permission bits, bytes.
func diffDirs(t testing.TB, want, got string) string {
	t.Helper()
	a, err := os.ReadDir(want)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadDir(got)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range a {
		names = append(names, e.Name())
	}
	for i, e := range b {
		if i >= len(names) || names[i] != e.Name() {
			return fmt.Sprintf("files %v, want %v", b, a)
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("files %v, want %v", b, a)
	}
	for _, name := range names {
		x, err := os.ReadFile(filepath.Join(want, name))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(got, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(x, y) {
			at := 0
			for at < min(len(x), len(y)) && x[at] == y[at] {
				at++
			}
			return fmt.Sprintf("%s differs at byte %d (%d and %d bytes)", name, at, len(x), len(y))
		}
		fx, _ := os.Stat(filepath.Join(want, name))
		fy, _ := os.Stat(filepath.Join(got, name))
		if fx.Mode() != fy.Mode() {
			return fmt.Sprintf("%s has mode %v, want %v", name, fy.Mode(), fx.Mode())
		}
	}
	return ""
}
