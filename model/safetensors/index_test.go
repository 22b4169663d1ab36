package safetensors_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/model/safetensors"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestIndex(t *testing.T) {
	ix := &safetensors.Index{
		TotalSize: 1234567890123,
		WeightMap: map[string]string{
			"model.norm.weight": "model-00002-of-00002.safetensors",
			"lm_head.weight":    "model-00002-of-00002.safetensors",
			"a\"\n\u007fä😀<":    "model-00001-of-00002.safetensors",
		},
	}
	want := `{
  "metadata": {
    "total_size": 1234567890123
  },
  "weight_map": {
    "a\"\n\u007f\u00e4\ud83d\ude00<": "model-00001-of-00002.safetensors",
    "lm_head.weight": "model-00002-of-00002.safetensors",
    "model.norm.weight": "model-00002-of-00002.safetensors"
  }
}
`
	path := filepath.Join(t.TempDir(), safetensors.IndexName)
	if err := ix.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, string(text)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	back, err := safetensors.ParseIndex(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(ix, back); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := gocmp.Diff([]string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, ix.Files()); diff != "" {
		t.Error(diff)
	}
	if got := string((&safetensors.Index{}).Encode()); got != "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}\n" {
		t.Errorf("empty index: %s", got)
	}
	ix.WeightMap["evil"] = "../../etc/passwd"
	if err := ix.WriteFile(path); err == nil {
		t.Error("a file outside of the folder was written")
	}
}

func TestParseIndex(t *testing.T) {
	tests := []struct {
		text string
		want *safetensors.Index
		err  string
	}{
		{`{"weight_map":{}}`, &safetensors.Index{WeightMap: map[string]string{}}, ""},
		{
			`{"metadata":{"total_size":1e3,"total_parameters":7},"x":[1,{}],"weight_map":{"a":"sub/f"}}`,
			&safetensors.Index{TotalSize: 1000, WeightMap: map[string]string{"a": "sub/f"}}, "",
		},
		{`{"metadata":null,"weight_map":{}}`, &safetensors.Index{WeightMap: map[string]string{}}, ""},
		{`{"metadata":{}}`, nil, `index: weight_map is missing`},
		{`{"weight_map":{"a":"f","a":"g"}}`, nil, `index: tensor "a" occurs more than once`},
		{`{"weight_map":{},"weight_map":{}}`, nil, `index: weight_map occurs more than once`},
		{`{"weight_map":{"a":1}}`, nil, `index: byte 18: file of tensor "a" must be a string, not number`},
		{`{"weight_map":{"a":"/etc/passwd"}}`, nil, `index: tensor "a": "/etc/passwd" is not a file in the model's folder`},
		{`{"weight_map":{"a":"../f"}}`, nil, `index: tensor "a": "../f" is not a file in the model's folder`},
		{`{"weight_map":{"a":"c:\\f"}}`, nil, `index: tensor "a": "c:\\f" is not a file in the model's folder`},
		{`{"weight_map":{"a":""}}`, nil, `index: tensor "a": "" is not a file in the model's folder`},
		{`{"metadata":{"total_size":-1},"weight_map":{}}`, nil, `index: total_size -1 is not a number of bytes`},
		{`{"metadata":{"total_size":1.5},"weight_map":{}}`, nil, `index: total_size 1.5 is not a number of bytes`},
		{`{"metadata":{"total_size":1e300},"weight_map":{}}`, nil, `index: total_size 1e300 is not a number of bytes`},
		{`[]`, nil, `index: byte 0: header must be an object, not [`},
		{"\xff", nil, `index: byte 0: invalid character '\xff' at start of value`},
	}
	for _, tt := range tests {
		got, err := safetensors.ParseIndex([]byte(tt.text))
		if tt.err != "" {
			if diff := gocmp.Diff(tt.err, fmt.Sprint(err)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tt.text, diff)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
		}
		if diff := gocmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.text, diff)
		}
	}
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":12},"weight_map":{"a":"f","\u00e4\ud83d\ude00":"sub/g"}}`))
	f.Add([]byte(`{"weight_map":{}}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		ix, err := safetensors.ParseIndex(text)
		if err != nil {
			return
		}
		again, err := safetensors.ParseIndex(ix.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(ix, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
