package fsx_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// TestNames: every file and folder may have any name, and any length of the whole path.
func TestNames(t *testing.T) {
	long := t.TempDir()
	for len(long) < 400 {
		long = filepath.Join(long, strings.Repeat("d", 40))
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "mit Leerzeichen", "größe 東京"), long} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "a & b (1) ü.txt")
		for _, text := range []string{"first", "second"} {
			if err := fsx.WriteFile(file, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != text {
				t.Errorf("read %q, %v", got, err)
			}
		}
		lock, err := fsx.Lock(t.Context(), file+".lock")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
		made := filepath.Join(dir, "made once")
		if err := fsx.MakeDirOnce(t.Context(), made, func(temp string) error { return os.WriteFile(filepath.Join(temp, "x"), nil, 0o666) }); err != nil {
			t.Error(err)
		}
		if _, _, err := fsx.SHA256(filepath.Join(made, "x")); err != nil {
			t.Error(err)
		}
		if _, err := fsx.FreeSpace(dir); err != nil {
			t.Error(err)
		}
	}
}

// TestReplaceReadOnly: as on Linux, a file that may not be written can be replaced.
func TestReplaceReadOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("old"), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := fsx.WriteFile(file, []byte("new"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "new" {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestReplaceOpen: a file that is open for a moment is replaced. One that stays open is on Windows an
// error that says so, and then the old content is there and no other file.
func TestReplaceOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := open()
	time.AfterFunc(300*time.Millisecond, func() { _ = f.Close() })
	if err := fsx.WriteFile(file, []byte("new"), 0o666); err != nil {
		t.Errorf("open for a moment: %v", err)
	}
	f = open()
	defer f.Close()
	err := fsx.WriteFile(file, []byte("newer"), 0o666)
	want := "newer"
	if runtime.GOOS == "windows" {
		want = "new"
		if err == nil || !strings.Contains(err.Error(), "another program has it open") {
			t.Errorf("error %v", err)
		}
	} else if err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("read %q, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestReadReplaced: a file that is replaced at the same moment is read, as it was or as it is.
func TestReadReplaced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := fsx.WriteFile(file, []byte("whole"), 0o666); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		var err error
		for i := 0; i < 100 && err == nil; i++ {
			err = fsx.WriteFile(file, []byte("whole"), 0o666)
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("write: %v", err)
			}
			return
		case <-time.After(time.Millisecond): // a reader that never rests keeps the writer out on Windows
		}
		if text, err := fsx.ReadFile(file, 100); err != nil || string(text) != "whole" {
			t.Errorf("read %q, %v", text, err)
			<-done
			return
		}
	}
}

// TestRemoveLocked: the owner of a lock removes the folder that it is in.
func TestRemoveLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stage")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	lock, err := fsx.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.RemoveDir(); err != nil {
		t.Error(err)
	}
	if err := lock.RemoveDir(); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}
