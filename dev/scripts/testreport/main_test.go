package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const passAndSkip = `{"Action":"start","Package":"github.com/kiln-build/kiln/wheel"}
{"Action":"run","Package":"github.com/kiln-build/kiln/wheel","Test":"TestA"}
{"Action":"pass","Package":"github.com/kiln-build/kiln/wheel","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Test":"TestB","Output":"    b_test.go:7: no GPU on this machine\n"}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"github.com/kiln-build/kiln/wheel","Test":"TestB","Elapsed":0}
{"Action":"pass","Package":"github.com/kiln-build/kiln/wheel","Elapsed":0.01}
`

func TestRun(t *testing.T) {
	tests := []struct {
		name    string
		events  string
		allow   string
		strict  bool
		want    string // the last line
		wantErr string // part of the error; "" for none
	}{
		{
			name: "skip is listed", events: passAndSkip,
			want: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "strict refuses an unknown skip", events: passAndSkip, allow: "# nothing\n", strict: true,
			want: "1 passed, 0 failed, 1 skipped", wantErr: "1 tests were skipped",
		},
		{
			name: "strict accepts a known reason", events: passAndSkip, allow: "\n# reason\n: no GPU on this machine$\n", strict: true,
			want: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "strict accepts a known test", events: passAndSkip, allow: `^wheel\.TestB: ` + "\n", strict: true,
			want: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "a bad pattern names its line", events: passAndSkip, allow: "ok\n(\n",
			wantErr: "allow:2: ",
		},
		{
			name: "a failed test counts once",
			events: `{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			want: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a package that does not build is a failure",
			events: `{"ImportPath":"p","Action":"build-output","Output":"x\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
`,
			want: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "words of the go command do not count", events: "go: warning\n" + passAndSkip,
			want: "1 passed, 0 failed, 1 skipped",
		},
		{
			name: "no test at all", events: `{"Action":"skip","Package":"p"}` + "\n",
			want: "0 passed, 0 failed, 0 skipped", wantErr: "no test ran",
		},
		{
			name: "a test that is run again counts by its last result",
			events: `{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"skip","Package":"p","Test":"TestA/y"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"skip","Package":"p","Test":"TestA/y"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
`,
			want: "2 passed, 0 failed, 1 skipped",
		},
		{
			name: "a test that fails twice",
			events: `{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			want: "0 passed, 1 failed, 0 skipped",
		},
		{
			name: "a torn event", events: `{"Action":"pa`,
			wantErr: "bad event",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) string {
				name = filepath.Join(dir, name)
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return name
			}
			summary := filepath.Join(dir, "summary")
			var out strings.Builder
			err := run(&out, write("events", tt.events), write("allow", tt.allow), summary, tt.strict)
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("run: %v", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("run: got error %v, want one with %q", err, tt.wantErr)
			}
			if tt.want == "" {
				return
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; got != tt.want {
				t.Errorf("last line: got %q, want %q", got, tt.want)
			}
			if got, err := os.ReadFile(summary); err != nil || string(got) != tt.want+"\n" {
				t.Errorf("summary: got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestSkipReason(t *testing.T) {
	res, err := readEvents(strings.NewReader(passAndSkip))
	if err != nil {
		t.Fatal(err)
	}
	if want := "wheel.TestB: no GPU on this machine"; len(res.skips) != 1 || res.skips[0].String() != want {
		t.Errorf("skips: got %v, want %q", res.skips, want)
	}
}

func TestUnsteady(t *testing.T) {
	events := write(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: 1 left behind\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA"}
`)
	var out strings.Builder
	if err := run(&out, events, "", "", true); err != nil {
		t.Fatal(err)
	}
	want := "UNSTEADY: p.TestA failed beside the others and passed alone:\n    a_test.go:7: 1 left behind\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got:\n%s\nwant in it:\n%s", &out, want)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
