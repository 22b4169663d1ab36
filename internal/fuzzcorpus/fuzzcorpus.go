// Package fuzzcorpus keeps what fuzzing found worth keeping. The inputs of one fuzz
// target are one file, testdata/corpus/TARGET.gz, beside the target's test: a few hundred
// small files a target would bury a repository. Every ordinary `go test` runs them all,
// through [Add], and `make fuzz RECORD=1` adds the new ones, through [Record].
package fuzzcorpus

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// header begins every input in the go command's own encoding, which is kept.
const header = "go test fuzz v1\n"

// What is kept of one target: enough to reach its code again, little enough to check in.
const (
	maxInputs     = 150
	maxInputBytes = 8 << 10
)

func path(dir, target string) string {
	return filepath.Join(dir, "testdata", "corpus", target+".gz")
}

// Add makes the recorded inputs of a fuzz target its seeds; with -short, every tenth of them.
func Add(f *testing.F) {
	f.Helper()
	inputs, err := Inputs(".", f.Name())
	if err != nil {
		f.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 10
	}
	for i := 0; i < len(inputs); i += step {
		f.Add(inputs[i]...)
	}
}

// Inputs returns the recorded inputs of a target of the package in dir: the arguments of
// each.
func Inputs(dir, target string) ([][]any, error) {
	inputs, err := read(path(dir, target))
	if err != nil {
		return nil, err
	}
	out := make([][]any, len(inputs))
	for i, input := range inputs {
		if out[i], err = parse(input); err != nil {
			return nil, fmt.Errorf("recorded input %q of %s: %w", input, target, err)
		}
	}
	return out, nil
}

// read returns the inputs of a corpus file; none if there is no file.
func read(name string) ([]string, error) {
	packed, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return strings.Split(strings.TrimPrefix(string(text), header), header), nil
}

// parse decodes the arguments of one input: a line each, such as string("a") or bool(true).
func parse(input string) ([]any, error) {
	var args []any
	for line := range strings.Lines(input) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), "(")
		arg, err := argument(kind, strings.TrimSuffix(text, ")"))
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return args, nil
}

func argument(kind, text string) (any, error) {
	switch kind {
	case "string":
		return strconv.Unquote(text)
	case "[]byte":
		s, err := strconv.Unquote(text)
		return []byte(s), err
	case "bool":
		return strconv.ParseBool(text)
	case "int":
		return strconv.Atoi(text)
	case "int64":
		return strconv.ParseInt(text, 10, 64)
	case "uint64":
		return strconv.ParseUint(text, 10, 64)
	case "uint16":
		v, err := strconv.ParseUint(text, 10, 16)
		return uint16(v), err
	case "uint32":
		v, err := strconv.ParseUint(text, 10, 32)
		return uint32(v), err
	case "uint":
		v, err := strconv.ParseUint(text, 10, 64)
		return uint(v), err
	case "byte": // as a character: byte('\x00')
		v, _, _, err := strconv.UnquoteChar(strings.TrimPrefix(text, "'"), '\'')
		return byte(v), err
	}
	return nil, fmt.Errorf("arguments of type %s are not kept", kind)
}

// Record adds the inputs that the go command has cached for a target to the corpus in
// the package's folder, and returns how many it has then. The smallest are kept.
func Record(cache, dir, target string) (int, error) {
	name := path(dir, target)
	inputs, err := read(name)
	if err != nil {
		return 0, err
	}
	files, err := os.ReadDir(cache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(cache, f.Name()))
		if err != nil {
			return 0, err
		}
		if input, ok := strings.CutPrefix(string(text), header); ok && len(input) <= maxInputBytes {
			inputs = append(inputs, input)
		}
	}
	slices.SortFunc(inputs, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	inputs = slices.Compact(inputs)
	// Inputs of an older signature of the target would only fail: the commonest one is kept.
	count, commonest := map[string]int{}, ""
	for _, input := range inputs {
		s := signature(input)
		if count[s]++; s != "" && count[s] > count[commonest] {
			commonest = s
		}
	}
	inputs = slices.DeleteFunc(inputs, func(s string) bool { return signature(s) != commonest })
	inputs = inputs[:min(len(inputs), maxInputs)]
	if len(inputs) == 0 {
		return 0, nil
	}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	for _, input := range inputs {
		_, _ = io.WriteString(z, header+input) // into memory
	}
	if err := z.Close(); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return 0, err
	}
	return len(inputs), os.WriteFile(name, packed.Bytes(), 0o644)
}

// signature returns the types of an input's arguments, or "" if it is not kept.
func signature(input string) string {
	args, err := parse(input)
	if err != nil {
		return ""
	}
	var types []string
	for _, a := range args {
		types = append(types, reflect.TypeOf(a).String())
	}
	return strings.Join(types, " ")
}
