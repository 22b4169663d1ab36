package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func journalPath(opts engine.Options) string { return filepath.Join(opts.Dir, "journal.jsonl") }

// sampleJournal is the journal of a small run with a bit of everything.
func sampleJournal(t testing.TB) []byte {
	opts := engine.Options{Dir: t.TempDir(), CPU: 1, MemoryBytes: gb, DiskBytes: gb, Runner: engine.Local(
		func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
			a.Stage("compile")(nil)
			a.Progress(1, 2, "files")
			if a.Job.ID == "bad" {
				return engine.Result{}, errors.New("line one\nline two")
			}
			return engine.Result{PeakMemoryBytes: 5, Outputs: json.RawMessage(`{"a":[1,2]}`)}, nil
		})}
	for range 2 {
		if _, err := engine.Run(t.Context(), []engine.Job{{ID: "good", Digest: "1"}, {ID: "bad"}, {ID: "after", Needs: []string{"bad"}}}, opts); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(journalPath(opts))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readState(t testing.TB, dir string, text []byte) (*engine.State, error) {
	if err := os.WriteFile(filepath.Join(dir, "journal.jsonl"), text, 0o666); err != nil {
		t.Fatal(err)
	}
	return engine.ReadState(dir)
}

// TestEveryCut: a reader beside a writer, or after a crash, gets the state of the last whole line.
func TestEveryCut(t *testing.T) {
	text := sampleJournal(t)
	dir := t.TempDir()
	var last *engine.State
	for cut := range len(text) + 1 {
		state, err := readState(t, dir, text[:cut])
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if cut > 0 && text[cut-1] != '\n' {
			if diff := cmp.Diff(last, state, cmpopts.IgnoreUnexported(engine.JobState{})); diff != "" {
				t.Fatalf("cut at %d (-line before +got):\n%s", cut, diff)
			}
		}
		last = state
	}
	if last.Job("good").Status != engine.StatusDone || last.Ended.IsZero() {
		t.Errorf("the whole: %+v", last)
	}
}

func TestDamage(t *testing.T) {
	text := sampleJournal(t)
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines = lines[:len(lines)-1]
	join := func(l [][]byte) []byte { return bytes.Join(l, nil) }
	change := func(line int, f func([]byte) []byte) []byte {
		out := append([][]byte(nil), lines...)
		out[line-1] = f(bytes.Clone(out[line-1]))
		return join(out)
	}
	line := func(text string) []byte {
		return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)), text)
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	tests := []struct {
		name string
		text []byte
		want string // error, or none
	}{
		{"last line", change(len(lines), flip), ""},
		{"zeros at the end", append(bytes.Clone(text), make([]byte, 5000)...), ""},
		{"torn lines at the end", append(bytes.Clone(text), "12345678 {\"kind\n0000\n\nabc"...), ""},
		{"only zeros", make([]byte, 4096), ""},
		{"middle", change(4, flip), "line 4 is damaged, but line 5 is not"},
		{"first", change(1, flip), "line 1 is damaged, but line 2 is not"},
		{"checksum", change(2, func(b []byte) []byte { b[0] = 'x'; return b }), "line 2 is damaged, but line 3 is not"},
		{"a line lost its end", change(3, func(b []byte) []byte { return b[:len(b)-2] }), "line 3 is damaged"},
		{"no header", join(lines[1:]), "line 1 does not say that this is a journal"},
		{"another file", []byte("[settings]\nkey = 1\n"), "this is not a journal"},
		{"another format", line(`{"kind":"journal","format":2}`), "format 2 is not known"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readState(t, t.TempDir(), tt.text)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				// A run goes on from there, and what it writes can be read.
				opts := options(t, nothing)
				if err := os.MkdirAll(opts.Dir, 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(journalPath(opts), tt.text, 0o666); err != nil {
					t.Fatal(err)
				}
				mustRun(t, []engine.Job{{ID: "new"}}, opts)
				if s, err := engine.ReadState(opts.Dir); err != nil || s.Job("new").Status != engine.StatusDone {
					t.Errorf("afterwards: %+v, %v", s, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "journal.jsonl") {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			opts := options(t, nothing)
			if err := os.MkdirAll(opts.Dir, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(journalPath(opts), tt.text, 0o666); err != nil {
				t.Fatal(err)
			}
			if _, err := engine.Run(t.Context(), []engine.Job{{ID: "new"}}, opts); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Run: %v", err)
			}
			if after, err := os.ReadFile(journalPath(opts)); err != nil || !bytes.Equal(after, tt.text) {
				t.Error("Run changed a file that it did not understand")
			}
		})
	}
}

// TestCompaction: a journal that has become large is rewritten, and says the same.
func TestCompaction(t *testing.T) {
	large := json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
	opts := options(t, func(_ context.Context, a *engine.Attempt) (engine.Result, error) {
		if a.Job.ID == "bad" {
			return engine.Result{}, errors.Join(errors.New("no"), os.WriteFile(filepath.Join(a.Dir, "made"), nil, 0o666))
		}
		return engine.Result{PeakMemoryBytes: int64(a.Number), Outputs: large}, nil
	})
	jobs := []engine.Job{{ID: "good"}, {ID: "bad"}, {ID: "after", Needs: []string{"bad"}}, {ID: "kept", Digest: "1"}}
	mustRun(t, append(jobs, engine.Job{ID: "old"}), opts)
	size := func() int64 {
		info, err := os.Stat(journalPath(opts))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for before <= 1_150_000 {
		mustRun(t, jobs, opts)
		if size() <= before {
			t.Fatalf("compacted at %d bytes", before)
		}
		before = size()
	}
	want, err := engine.ReadState(opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, nil, opts)
	if after := size(); after > before/4 {
		t.Errorf("%d bytes, before %d", after, before)
	}
	got, err := engine.ReadState(opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Jobs {
		want.Jobs[i].Current = false
		if diff := cmp.Diff(&want.Jobs[i], got.Job(want.Jobs[i].ID), cmpopts.IgnoreUnexported(engine.JobState{})); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	}
	if text, err := os.ReadDir(got.Job("bad").Dir()); err != nil || len(text) != 1 {
		t.Errorf("folder of the last failure: %v, %v", text, err)
	}
	report := mustRun(t, jobs, opts)
	if report.Jobs[3].Status != engine.StatusReused || !bytes.Equal(report.Jobs[3].Result.Outputs, large) {
		t.Errorf("%s", report.Jobs[3].Status)
	}
}

// FuzzJournal: no content of the file makes a reader fail in another way than by an error.
func FuzzJournal(f *testing.F) {
	text := sampleJournal(f)
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte{})
	f.Add([]byte("00000000 {}\n"))
	fuzzcorpus.Add(f)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "journal.jsonl")
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		state, err := engine.ReadState(dir)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "journal ") {
				t.Error(err)
			}
			return
		}
		for _, j := range state.Jobs {
			if rel, err := filepath.Rel(filepath.Join(dir, "attempts"), j.Dir()); j.Attempt != 0 && (err != nil || strings.Contains(rel, "/") || rel == "..") {
				t.Errorf("the folder of %q is %s", j.ID, j.Dir())
			}
			if _, err := json.Marshal(j); err != nil {
				t.Error(fmt.Errorf("%q: %w", j.ID, err))
			}
		}
	})
}
