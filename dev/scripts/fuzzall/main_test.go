package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	const events = `{"Action":"start","Package":"github.com/kiln-build/kiln/wheel"}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Output":"FuzzVersion\n"}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Output":"FuzzName\n"}
{"Action":"output","Package":"github.com/kiln-build/kiln/wheel","Output":"ok  \tgithub.com/kiln-build/kiln/wheel\t0.002s\n"}
{"Action":"pass","Package":"github.com/kiln-build/kiln/wheel","Elapsed":0.002}
`
	targets, said, err := parseList(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, target := range targets {
		got = append(got, target.String())
	}
	if want := []string{"./wheel.FuzzVersion", "./wheel.FuzzName"}; !slices.Equal(got, want) {
		t.Errorf("targets: got %q, want %q", got, want)
	}
	if !strings.HasPrefix(said, "ok ") {
		t.Errorf("other output: got %q", said)
	}
	if _, _, err := parseList(strings.NewReader(`{"Action":`)); err == nil {
		t.Error("a torn event was accepted")
	}
}

func TestParseProgress(t *testing.T) {
	const output = `fuzz: elapsed: 0s, gathering baseline coverage: 5/5 completed, now fuzzing with 1 workers
fuzz: elapsed: 3s, execs: 1203 (400/sec), new interesting: 2 (total: 7)
fuzz: elapsed: 4s, execs: 1403 (200/sec), new interesting: 3 (total: 8)
PASS
`
	r := parseProgress(output)
	if r.execs != 1403 || r.fresh != 3 || r.total != 8 {
		t.Errorf("got execs %d, new %d, total %d, want 1403, 3, 8", r.execs, r.fresh, r.total)
	}
}

func TestEndOfTime(t *testing.T) {
	const deadline = "--- FAIL: FuzzName (30.08s)\n    context deadline exceeded\nFAIL\nexit status 1\n"
	if !endOfTime(deadline) {
		t.Error("the end of the time counts as a failure of the target")
	}
	const failure = "--- FAIL: FuzzName (0.08s)\n    --- FAIL: FuzzName (0.00s)\n        name_test.go:9: context deadline exceeded\n" +
		"    Failing input written to testdata/fuzz/FuzzName/582528ddfad69eb5\nFAIL\n"
	if endOfTime(failure) {
		t.Error("a real failure was taken for the end of the time")
	}
}
