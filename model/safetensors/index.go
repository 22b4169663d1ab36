package safetensors

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/fsx"
)

// IndexName is the usual name of the file with an [Index].
const IndexName = "model.safetensors.index.json"

// Index says which file of a sharded model holds which tensor.
type Index struct {
	// TotalSize is the number of data bytes of all tensors; 0 if the index has none.
	TotalSize int64
	// WeightMap is from tensor name to file name. File names are relative to the
	// folder of the index, have forward slashes and do not leave it.
	WeightMap map[string]string
}

// ParseIndex reads the JSON form. Members that it does not know are ignored. A tensor that
// occurs twice is an error, and so is a file name that leads out of the folder.
func ParseIndex(text []byte) (*Index, error) {
	var ix Index
	s := newScanner(text)
	s.document(func(key string) {
		switch key {
		case "metadata":
			if !s.null() {
				s.object("metadata", func(key string) {
					if key == "total_size" {
						ix.TotalSize = s.totalSize()
					} else {
						s.skip()
					}
				})
			}
		case "weight_map":
			if ix.WeightMap != nil {
				s.fail("weight_map occurs more than once")
			}
			ix.WeightMap = map[string]string{}
			s.object("weight_map", func(name string) {
				if _, dup := ix.WeightMap[name]; dup {
					s.fail("tensor %q occurs more than once", name)
				}
				file := s.string(fmt.Sprintf("file of tensor %q", name))
				if s.err == nil && !localFile(file) {
					s.fail("tensor %q: %q is not a file in the model's folder", name, file)
				}
				ix.WeightMap[name] = file
			})
		default:
			s.skip()
		}
	})
	if s.err == nil && ix.WeightMap == nil {
		s.fail("weight_map is missing")
	}
	if s.err != nil {
		return nil, fmt.Errorf("index: %w", s.err)
	}
	return &ix, nil
}

// totalSize accepts 1e9 and 1000000000.0 too, which some writers produce.
func (s *scanner) totalSize() int64 {
	text, natural := s.number("total_size")
	if s.err != nil {
		return 0
	}
	if natural {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f != math.Trunc(f) || f >= math.MaxInt64 {
		s.fail("total_size %s is not a number of bytes", text)
		return 0
	}
	return int64(f)
}

func localFile(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.ContainsAny(name, "\\:\x00")
}

// Files returns the names of all files, sorted.
func (ix *Index) Files() []string {
	return slices.Compact(slices.Sorted(maps.Values(ix.WeightMap)))
}

// Encode returns the JSON form, byte for byte what Python's
// json.dumps(index, indent=2, sort_keys=True) and a newline give.
func (ix *Index) Encode() []byte {
	b := fmt.Appendf(nil, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", ix.TotalSize)
	for i, name := range slices.Sorted(maps.Keys(ix.WeightMap)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, "\n    "...)
		b = appendASCII(b, name)
		b = append(b, ": "...)
		b = appendASCII(b, ix.WeightMap[name])
	}
	if len(ix.WeightMap) > 0 {
		b = append(b, "\n  "...)
	}
	return append(b, "}\n}\n"...)
}

// WriteFile writes the JSON form to path, atomically and durably. A name that
// [ParseIndex] would refuse is an error.
func (ix *Index) WriteFile(path string) error {
	for _, name := range slices.Sorted(maps.Keys(ix.WeightMap)) {
		if file := ix.WeightMap[name]; !localFile(file) || !utf8.ValidString(name) {
			return fmt.Errorf("write %s: tensor %q: %q is not a file in the model's folder", path, name, file)
		}
	}
	return fsx.WriteFile(path, ix.Encode(), 0o666)
}

// appendASCII appends s as Python writes it: everything that is not ASCII escaped.
func appendASCII(b []byte, s string) []byte {
	start := len(b)
	b = appendString(b, s)
	if strings.IndexFunc(s, func(r rune) bool { return r >= 0x7F }) < 0 {
		return b
	}
	quoted := string(b[start:])
	b = b[:start]
	for _, r := range quoted {
		switch {
		case r < 0x7F:
			b = append(b, byte(r))
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		}
	}
	return b
}
