package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/pick"
)

func TestPickFlags(t *testing.T) {
	base := pick.Target{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.11.2", Torch: "2.8.0+cu126", TorchCUDA: "12.6", NoDriver: true}
	tests := map[string]struct {
		flags pickFlags
		want  pick.Target
	}{
		"another torch and GPU": {
			flags: pickFlags{machine: pick.Target{Torch: "2.9.0+cu128", Python: "3.13t"}, gpus: []string{"9.0"}},
			want:  pick.Target{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.13", FreeThreaded: true, Torch: "2.9.0+cu128", TorchABI: "1", GPUs: []pick.GPU{{Arch: "9.0"}}},
		},
		"a torch whose builds differ": {
			flags: pickFlags{machine: pick.Target{Torch: "2.6.0+cu126"}},
			want:  pick.Target{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.11.2", Torch: "2.6.0+cu126", TorchABI: "1", NoDriver: true},
		},
		"no torch": {
			flags: pickFlags{machine: pick.Target{Torch: "none"}, cuda: "12.8"},
			want:  pick.Target{OS: "linux", Arch: "x86_64", Glibc: "2.36", Python: "3.11.2", NoDriver: true, Toolkit: "cu128"},
		},
		"windows": {
			flags: pickFlags{machine: pick.Target{OS: "windows", Driver: "580.88", Torch: "none"}, cuda: "cpu"},
			want:  pick.Target{OS: "windows", Python: "3.11.2", Driver: "580.88", DriverCUDA: "13.0", Toolkit: "cpu"},
		},
	}
	for name, test := range tests {
		got, err := test.flags.apply(base)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// pickServer serves an index with the project fa.
func pickServer() *httptest.Server {
	page := `{"meta":{"api-version":"1.4"},"name":"fa","versions":["1.0"],"files":[
		{"filename":"fa-1.0+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl","url":"a.whl","hashes":{"sha256":"` + strings.Repeat("ab", 32) + `"},"size":1,"_kiln":{"arch":["80","90"]}},
		{"filename":"fa-1.0+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl","url":"b.whl","hashes":{},"size":1,"_kiln":{"arch":["80","90"]}}]}`
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/catalog.json":
			fmt.Fprint(w, `{"kiln-catalog":1,"views":[{"path":"cu128/torch2.9"}]}`)
		case "/all/simple/fa/":
			w.Header().Set("Content-Type", index.TypeJSON)
			fmt.Fprint(w, page)
		default:
			http.NotFound(w, r)
		}
	}))
}

// TestPickOutput: the one line, the one reason, and what --explain and --json add.
func TestPickOutput(t *testing.T) {
	server := pickServer()
	defer server.Close()
	run := func(f pickFlags) (string, string, error) {
		var stdout, stderr bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
		f.index, f.noProbe = server.URL, true
		err := a.pick(t.Context(), "fa", f)
		return stdout.String(), stderr.String(), err
	}
	machine := pick.Target{OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12", Torch: "2.9.0+cu128"}
	line := "pip install fa==1.0+cu128.torch2.9 --only-binary fa --extra-index-url " + server.URL + "/cu128/torch2.9/simple/\n"
	out, _, err := run(pickFlags{machine: machine, gpus: []string{"9.0"}})
	if err != nil || out != line {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(pickFlags{machine: machine, explain: true})
	want := "machine   linux x86_64, glibc 2.39, Python 3.12, torch 2.9.0+cu128, C++11 ABI 1\n" +
		"best      fa-1.0+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl\n" +
		"no        fa-1.0+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl: was built for torch 2.8, this has 2.9.0+cu128\n\n" + line
	if diff := cmp.Diff(want, out); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	out, _, err = run(pickFlags{machine: machine, gpus: []string{"7.0"}})
	if out != "" || !errors.As(err, new(rowsFailedError)) || !strings.Contains(err.Error(), "has no code for 7.0; it has 8.0, 9.0") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(pickFlags{machine: machine, asJSON: true})
	var result struct {
		Best    struct{ Filename string }
		Install index.Install
		SHA256  string
		Near    []struct{ Misses []pick.Reason }
		Machine pick.Target
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &result)); err != nil {
		t.Fatal(err)
	}
	if result.Install.Pip+"\n" != line || result.SHA256 != strings.Repeat("ab", 32) || len(result.Near) != 1 || result.Near[0].Misses[0].Kind != "torch" {
		t.Errorf("%s", out)
	}
	// What one machine prints, another reads.
	saved := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(saved, []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _, err = run(pickFlags{machineFile: saved}); err != nil || out != line {
		t.Errorf("with --machine: %v\n%s", err, out)
	}
}
