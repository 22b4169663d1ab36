package launcher

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// fill gives every field below v a value that is not zero, so that one which is forgotten is seen.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 11, 15, 1, 2, 3, 456789, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(t, field)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
		fill(t, v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		item := reflect.New(v.Type().Elem()).Elem()
		fill(t, item)
		v.SetMapIndex(reflect.ValueOf("c++"), item)
	case reflect.String:
		v.SetString("a \"b\" \\ <c> \n é \U0001f525 " + v.Type().Name())
	case reflect.Int, reflect.Int64:
		v.SetInt(1<<40 + 7)
	case reflect.Float64:
		v.SetFloat(0.0012345678901)
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("no value for a %s", v.Type())
	}
}

// What kiln writes with encoding/json a launcher reads, every field of it.
func TestParseConfig(t *testing.T) {
	var full Config
	fill(t, reflect.ValueOf(&full).Elem())
	for name, want := range map[string]*Config{"full": &full, "empty": {Tools: map[string]Tool{}}} {
		for _, indent := range []string{"", "\t"} {
			text, err := json.MarshalIndent(want, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseConfig(string(text))
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, text)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
	for _, text := range []string{"", "{", "[]]", `{"row":"a"`, `{"row" "a"}`, `{"row":"a",}`, "{\"row\":\"\n\"}", `{"cache_bytes":1e3}`, `{"row":"\x"}`, strings.Repeat("[", 99)} {
		if c, err := parseConfig(text); err == nil {
			t.Errorf("%q is %+v", text, c)
		}
	}
}

// What a launcher writes kiln reads with encoding/json, every field of it.
func TestEncode(t *testing.T) {
	for _, empty := range []bool{false, true} {
		var record Record
		var request SlotRequest
		var report SlotReport
		if !empty {
			fill(t, reflect.ValueOf(&record).Elem())
			fill(t, reflect.ValueOf(&request).Elem())
			fill(t, reflect.ValueOf(&report).Elem())
		}
		for _, test := range []struct {
			text      []byte
			want, got any
		}{
			{record.encode(), &record, new(Record)},
			{request.encode(), &request, new(SlotRequest)},
			{report.encode(), &report, new(SlotReport)},
		} {
			if err := json.Unmarshal(test.text, test.got); err != nil {
				t.Fatalf("%v\n%s", err, test.text)
			}
			if diff := cmp.Diff(test.want, test.got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n := strings.Count(string(test.text), "\n"); n != 1 || !strings.HasSuffix(string(test.text), "\n") {
				t.Errorf("%d lines:\n%s", n, test.text)
			}
		}
	}
}

// Nothing is read that is not JSON, and every string is the one that encoding/json reads.
func FuzzParseJSON(f *testing.F) {
	f.Add(`{"row":"a","tools":{"c++":{"path":"\/usr\u002fbin\ud83d\udd25 \ud83dx"}},"cache_bytes":-12,"x":[true,false,null,{}]}`)
	f.Add(`"\udd25\ud83d\ud83d\udd25"`)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		v, err := parseJSON(text)
		if err != nil {
			return
		}
		var want any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%q is not JSON: %v", text, err)
		}
		if s, ok := want.(string); ok && utf8.ValidString(text) && (v.kind != '"' || v.text != s) {
			t.Errorf("%q is %q, want %q", text, v.text, s)
		}
		if list, ok := want.([]any); ok && len(list) != len(v.list) {
			t.Errorf("%q has %d values, want %d", text, len(v.list), len(list))
		}
		_, _ = parseConfig(text)
	})
}

func TestAppendString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "s")
		text := appendString(nil, s)
		var got string
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && got != want {
			t.Fatalf("%q became %q", s, got)
		}
		if v, err := parseJSON(string(text)); err != nil || v.text != got {
			t.Fatalf("%q became %q, %v", s, v.text, err)
		}
	})
}

// What stands in for package strings does what it does.
func TestText(t *testing.T) {
	letters := rapid.StringOfN(rapid.SampledFrom([]rune("ab-é")), 0, 12, -1)
	short := rapid.StringOfN(rapid.SampledFrom([]rune("ab-é")), 1, 3, -1)
	rapid.Check(t, func(t *rapid.T) {
		s, part, by := letters.Draw(t, "s"), short.Draw(t, "part"), letters.Draw(t, "by")
		prefixRest, prefixed := strings.CutPrefix(s, part)
		suffixRest, suffixed := strings.CutSuffix(s, part)
		before, after, found := strings.Cut(s, part)
		want := []any{
			strings.HasPrefix(s, part), strings.HasSuffix(s, part), prefixRest, prefixed, suffixRest, suffixed, strings.TrimSuffix(s, part), strings.Index(s, part),
			strings.Contains(s, part), before, after, found, strings.Split(s, part), strings.Join([]string{s, part, by}, part), strings.ReplaceAll(s, part, by),
			strings.Trim(s, "ab-") == "",
		}
		prefixRest, prefixed = cutPrefix(s, part)
		suffixRest, suffixed = cutSuffix(s, part)
		before, after, found = cut(s, part)
		got := []any{
			hasPrefix(s, part), hasSuffix(s, part), prefixRest, prefixed, suffixRest, suffixed, trimSuffix(s, part), index(s, part),
			contains(s, part), before, after, found, split(s, part), join([]string{s, part, by}, part), replaceAll(s, part, by),
			consistsOf(s, "ab-"),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q, %q, %q (-want +got):\n%s", s, part, by, diff)
		}
	})
}
