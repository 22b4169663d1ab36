package wheel_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/wheel"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestRecord(t *testing.T) {
	const sha256Text, sha512Text = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "sha512=z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg_SpIdNs6c5H0NE8XYXysP-DGNKHfuwvY7kxvUdBeoGlODJ6-SfaPg"
	text := "a.py," + sha256Text + ",0\r\n" +
		"\r\n" +
		`"b, c.txt",` + sha512Text + ",\n" +
		`"say ""hi"".txt",,7` + "\n" +
		"é.txt,,\n" +
		"x.dist-info/RECORD,,"
	rec, err := wheel.ParseRecord([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range rec.Entries {
		got = append(got, fmt.Sprint(e.Path, "|", e.Algorithm, "|", len(e.Digest), "|", e.Size))
	}
	want := []string{"a.py|sha256|32|0", "b, c.txt|sha512|64|-1", `say "hi".txt||0|7`, "é.txt||0|-1", "x.dist-info/RECORD||0|-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	out, err := rec.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(strings.ReplaceAll(text, "\r\n\r\n", "\n"), "\r", "")+"\n", string(out)); diff != "" {
		t.Error(diff)
	}
	if e := rec.Lookup("b, c.txt"); e == nil || e.Algorithm != "sha512" {
		t.Errorf("Lookup: %v", e)
	}
	if e := rec.Lookup("nothing"); e != nil {
		t.Errorf("Lookup of nothing: %v", e)
	}
}

func TestRecordRefuses(t *testing.T) {
	digest := strings.TrimPrefix(strings.Split(recordRow("x", ""), ",")[1], "sha256=")
	for name, test := range map[string]struct{ text, reason string }{
		"two columns":         {"a,\n", "2 columns"},
		"four columns":        {"a,,,\n", "4 columns"},
		"md5":                 {"a,md5=1B2M2Y8AsgTpgAmY7PhCfg,\n", `algorithm "md5"`},
		"sha1":                {"a,sha1=2jmj7l5rSw0yVb_vlWAYkK_YBwk,\n", `algorithm "sha1"`},
		"sha224":              {"a,sha224=" + digest + ",\n", `algorithm "sha224"`},
		"no algorithm":        {"a," + digest + ",\n", "algorithm"},
		"padded":              {"a,sha256=" + digest + "=,\n", "malformed sha256 digest"},
		"standard alphabet":   {"a,sha256=" + strings.ReplaceAll(digest, "-", "+") + ",\n", "malformed sha256 digest"},
		"short":               {"a,sha256=" + digest[:40] + ",\n", "malformed sha256 digest"},
		"stray bits":          {"a,sha256=" + digest[:42] + "V,\n", "malformed sha256 digest"},
		"negative size":       {"a,,-1\n", "malformed size"},
		"signed size":         {"a,,+1\n", "malformed size"},
		"hex size":            {"a,,0x1\n", "malformed size"},
		"zero-padded size":    {"a,,01\n", "malformed size"},
		"huge size":           {"a,,9223372036854775808\n", "malformed size"},
		"twice":               {"a,,\nb,,\na,,\n", `line 3: "a" listed twice`},
		"twice, once quoted":  {"a,,\n\"a\",,\n", "listed twice"},
		"parent":              {"../a,,\n", `".." in name`},
		"inner parent":        {"a/../../b,,\n", `".." in name`},
		"dot":                 {"./a,,\n", `"." in name`},
		"absolute":            {"/etc/passwd,,\n", "absolute name"},
		"drive":               {"C:/x,,\n", "absolute name"},
		"backslash":           {`a\b,,` + "\n", "backslash"},
		"double slash":        {"a//b,,\n", "empty part"},
		"folder":              {"a/,,\n", "names a folder"},
		"empty path":          {",,\n", "empty name"},
		"control":             {"a\tb,,\n", "control character"},
		"line break in name":  {"\"a\nb\",,\n", "control character"},
		"not UTF-8":           {"a\xff,,\n", "not UTF-8"},
		"open quote":          {`"a,,` + "\n", "without an end"},
		"quote inside":        {`a"b,,` + "\n", "misplaced quote"},
		"text after quote":    {`"a"b,,` + "\n", "misplaced quote"},
		"stray CR":            {"a\rb,,\n", "carriage return"},
		"endless line":        {strings.Repeat("a", 1<<20) + ",,\n", "longer than"},
		"endless quoted line": {`"` + strings.Repeat(`""`, 1<<20), "longer than"},
	} {
		_, err := wheel.ParseRecord([]byte(test.text))
		if err == nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.reason)
		}
	}
	var many strings.Builder
	for i := range wheel.MaxRecordEntries + 1 {
		fmt.Fprintf(&many, "%d,,\n", i)
	}
	if _, err := wheel.ParseRecord([]byte(many.String())); err == nil || !strings.Contains(err.Error(), "more than 100000 entries") {
		t.Errorf("too many rows: %v", err)
	}
	if testing.Short() {
		return // the rest reads 64 MiB
	}
	blank := bytes.Repeat([]byte("\n"), wheel.MaxRecordSize+1)
	if _, err := wheel.ParseRecord(blank); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("too long: %v", err)
	}
}

func TestRecordBytesRefuses(t *testing.T) {
	sum := sha256.Sum256(nil)
	for name, entries := range map[string][]wheel.RecordEntry{
		"twice":           {{Path: "a", Size: -1}, {Path: "a", Size: -1}},
		"parent":          {{Path: "../a", Size: -1}},
		"weak hash":       {{Path: "a", Algorithm: "md5", Digest: sum[:16]}},
		"wrong length":    {{Path: "a", Algorithm: "sha512", Digest: sum[:]}},
		"digest, no name": {{Path: "a", Digest: sum[:]}},
		"name, no digest": {{Path: "a", Algorithm: "sha256"}},
	} {
		if out, err := (&wheel.Record{Entries: entries}).Bytes(); err == nil {
			t.Errorf("%s: wrote %q", name, out)
		}
	}
}

func TestWheelInfo(t *testing.T) {
	const text = "Wheel-Version: 1.0\nGenerator: setuptools (84.2.1)\nRoot-Is-Purelib: FALSE\nTag: cp312-cp312-linux_x86_64\nTag: py2.py3-none-any\nX-Kept:  yes\nBuild: 1abc\n\n"
	info, err := wheel.ParseWheelInfo([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := &wheel.WheelInfo{
		WheelVersion: "1.0", Generator: "setuptools (84.2.1)", Build: "1abc",
		Tags: []wheel.Tag{{Python: "cp312", ABI: "cp312", Platform: "linux_x86_64"}, {Python: "py2", ABI: "none", Platform: "any"}, {Python: "py3", ABI: "none", Platform: "any"}},
	}
	if diff := cmp.Diff(want, info, cmpopts.IgnoreUnexported(wheel.WheelInfo{})); diff != "" {
		t.Error(diff)
	}
	bytesOf := func(info *wheel.WheelInfo) string {
		t.Helper()
		b, err := info.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if diff := cmp.Diff(text, bytesOf(info)); diff != "" {
		t.Errorf("unmodified:\n%s", diff)
	}
	info.Tags, info.Build, info.RootIsPurelib = info.Tags[:1], "", true
	if diff := cmp.Diff("Wheel-Version: 1.0\nGenerator: setuptools (84.2.1)\nRoot-Is-Purelib: true\nTag: cp312-cp312-linux_x86_64\nX-Kept:  yes\n\n", bytesOf(info)); diff != "" {
		t.Errorf("modified:\n%s", diff)
	}
	const twice = "Wheel-Version: 1.0\nGenerator: meson\nRoot-Is-Purelib: false\nTag: py3-none-any\nGenerator: delocate 0.13.0\n"
	if info, err = wheel.ParseWheelInfo([]byte(twice)); err != nil {
		t.Fatal(err)
	}
	if info.Generator != "meson, delocate 0.13.0" || bytesOf(info) != twice {
		t.Errorf("two generators: %q, %q", info.Generator, bytesOf(info))
	}
	made := &wheel.WheelInfo{Generator: "kiln", RootIsPurelib: true, Tags: want.Tags[1:], Build: "2"}
	if diff := cmp.Diff("Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\nBuild: 2\n\n", bytesOf(made)); diff != "" {
		t.Errorf("made:\n%s", diff)
	}
	for _, bad := range []*wheel.WheelInfo{{WheelVersion: "2.0"}, {Generator: "a\nTag: x"}, {Tags: []wheel.Tag{{Python: "a b", ABI: "-", Platform: ""}}}} {
		if b, err := bad.Bytes(); err == nil {
			t.Errorf("%+v written as %q", bad, b)
		}
	}
}

func TestWheelInfoRefuses(t *testing.T) {
	for text, reason := range map[string]string{
		"":                      "Wheel-Version",
		"Wheel-Version: 2.0\n":  `"2.0", not 1.x`,
		"Wheel-Version: 1\n":    "not 1.x",
		"Wheel-Version: 1.x\n":  "not 1.x",
		"Wheel-Version: 10.0\n": "not 1.x",
		"Wheel-Version: 1.0\nRoot-Is-Purelib: maybe\n":                          "Root-Is-Purelib",
		"Wheel-Version: 1.0\nWheel-Version: 1.0\n":                              "given 2 times",
		"Wheel-Version: 1.0\nTag: py3-none\n":                                   "tag",
		"Wheel-Version: 1.0\nTag: py3-none-any/../x\n":                          "tag",
		"Wheel-Version: 1.0\n" + strings.Repeat("Tag: py2.py3-none-any\n", 501): "more than 1000 tags",
		"Wheel-Version: 1.0\n\n" + strings.Repeat("x", 64<<10):                  "limit 65536",
	} {
		if _, err := wheel.ParseWheelInfo([]byte(text)); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%.40q: error %v, want one with %q", text, err, reason)
		}
	}
}

// FuzzRecord reads its input as RECORD and as WHEEL: what is accepted must be
// written and read back to the same value, and written again to the same bytes.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n\"b, c\",,7\r\nx.dist-info/RECORD,,"))
	f.Add([]byte("\"a\"\"b\",,\n\n\r\né,,0\n"))
	f.Add([]byte("Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py2.py3-none-any\nBuild: 1\n\n"))
	f.Add([]byte("Wheel-Version: 1.9\r\nTag: cp312-abi3-linux_x86_64\r\n\r\nbody"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if rec, err := wheel.ParseRecord(data); err == nil {
			out, err := rec.Bytes()
			if err != nil {
				t.Fatalf("%q was read and cannot be written: %v", data, err)
			}
			again, err := wheel.ParseRecord(out)
			if err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			if diff := cmp.Diff(rec, again); diff != "" {
				t.Fatalf("%q reads back differently:\n%s", out, diff)
			}
		}
		if info, err := wheel.ParseWheelInfo(data); err == nil {
			out, err := info.Bytes()
			if err != nil || string(out) != string(data) {
				t.Fatalf("%q written as %q: %v", data, out, err)
			}
			info.Tags = append([]wheel.Tag{{Python: "cp313", ABI: "cp313", Platform: "linux_x86_64"}}, info.Tags...)
			info.Build, info.Generator = "7", "fuzz"
			if out, err = info.Bytes(); err != nil {
				if len(info.Tags) > 1000 || len(data) > 60<<10 {
					return
				}
				t.Fatalf("%q edited: %v", data, err)
			}
			again, err := wheel.ParseWheelInfo(out)
			if err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			if diff := cmp.Diff(info, again, cmpopts.IgnoreUnexported(wheel.WheelInfo{})); diff != "" {
				t.Fatalf("%q reads back differently:\n%s", out, diff)
			}
		}
	})
}
