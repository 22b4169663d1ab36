package exl2

import "testing"

func TestPythonJSON(t *testing.T) {
	// Left the input, right what Python's json.dumps(json.loads(input), indent=4) gives.
	tests := [][2]string{
		{`1e-5`, `1e-05`},
		{`0.0001`, `0.0001`},
		{`1E6`, `1000000.0`},
		{`9007199254740993`, `9007199254740993`},
		{`5e-324`, `5e-324`},
		{`1e15`, `1000000000000000.0`},
		{`1e16`, `1e+16`},
		{`123456789012345680.0`, `1.2345678901234568e+17`},
		{`-0.0`, `-0.0`},
		{`-0`, `0`},
		{`9999999999999998.0`, `9999999999999998.0`},
		{`0.00001234`, `1.234e-05`},
		{`[]`, `[]`},
		{` { } `, `{}`},
		{`[[],{}]`, "[\n    [],\n    {}\n]"},
		{`{"b":1,"a":[true,null],"b":false}`, "{\n    \"b\": false,\n    \"a\": [\n        true,\n        null\n    ]\n}"},
		{`"\u00e9é/\u007f<&\u2028 😀\ud83d\ude00\ud800x\udc00\ud800\ud800\udc00"`, `"\u00e9\u00e9/\u007f<&\u2028 \ud83d\ude00\ud83d\ude00\ud800x\udc00\ud800\ud800\udc00"`},
		{`"\b\f\n\r\t\u0001\"\\\/"`, `"\b\f\n\r\t\u0001\"\\/"`},
	}
	for _, tt := range tests {
		v, err := parseJSON([]byte(tt[0]))
		if err != nil {
			t.Errorf("%s: %v", tt[0], err)
			continue
		}
		if got := string(appendPython(nil, v, 0)); got != tt[1] {
			t.Errorf("%s\n got %s\nwant %s", tt[0], got, tt[1])
		}
	}
	for _, bad := range []string{
		"", "{", "[1,]", `{"a":1,}`, "01", "1.", ".5", "1e400", "NaN", "-Infinity", `"\x"`, "\"\n\"", `"\ud83`, "nul", "1 2",
		"{1:2}", "\xff", "\ufeff{}", `"abc`,
	} {
		if _, err := parseJSON([]byte(bad)); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}
