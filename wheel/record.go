package wheel

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
)

// MaxRecordSize is the largest RECORD file [ParseRecord] reads, in bytes, and
// MaxRecordEntries the largest number of rows.
const (
	MaxRecordSize    = 64 << 20
	MaxRecordEntries = 100_000
)

// A RecordEntry is one row of a RECORD file.
type RecordEntry struct {
	// Path is the name of the file, relative to the root of the archive, with
	// forward slashes.
	Path string

	// Algorithm is "sha256", "sha384" or "sha512", or "" for a file without a
	// hash, which in a wheel is RECORD itself and its deprecated signatures.
	Algorithm string

	// Digest is the hash of the content, of the length of the algorithm.
	Digest []byte

	// Size is the length of the content in bytes, or -1 when it is not given.
	Size int64
}

// Record is the RECORD file of a wheel: the list of its files with their hashes.
// The order of entries is kept.
//
// See https://packaging.python.org/specifications/recording-installed-packages/.
type Record struct {
	Entries []RecordEntry
}

// ParseRecord reads a RECORD file: CSV as Python's csv module writes it, three
// columns, lines ended by LF or CRLF. It refuses a path given twice or one that
// could leave the root of the archive, a hash other than SHA-256, SHA-384 or
// SHA-512 in unpadded base64url, and a size that is not a plain number.
func ParseRecord(data []byte) (*Record, error) {
	return readRecord(bytes.NewReader(data), MaxRecordSize, MaxRecordEntries)
}

// readRecord is ParseRecord on a stream. It holds the rows accepted so far and
// one line, so a hostile RECORD cannot make it use more memory than maxEntries
// honest rows.
func readRecord(r io.Reader, maxSize int64, maxEntries int) (*Record, error) {
	limited := &io.LimitedReader{R: r, N: maxSize + 1}
	rows := csvReader{r: bufio.NewReader(limited)}
	rec := &Record{}
	seen := make(map[string]bool)
	for {
		row, err := rows.next()
		if limited.N <= 0 {
			return nil, fmt.Errorf("parse RECORD: longer than %d bytes", maxSize)
		}
		if errors.Is(err, io.EOF) {
			return rec, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parse RECORD: line %d: %w", rows.line, err)
		}
		entry, err := parseRecordRow(row)
		if err == nil && seen[entry.Path] {
			err = fmt.Errorf("%q listed twice", entry.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("parse RECORD: line %d: %w", rows.line, err)
		}
		if len(rec.Entries) == maxEntries {
			return nil, fmt.Errorf("parse RECORD: more than %d entries", maxEntries)
		}
		seen[entry.Path] = true
		rec.Entries = append(rec.Entries, entry)
	}
}

func parseRecordRow(row []string) (RecordEntry, error) {
	if len(row) != 3 {
		return RecordEntry{}, fmt.Errorf("%d columns, not 3", len(row))
	}
	e := RecordEntry{Path: row[0], Size: -1}
	if err := checkMemberName(e.Path); err != nil {
		return e, fmt.Errorf("path %q: %w", e.Path, err)
	}
	if strings.HasSuffix(e.Path, "/") {
		return e, fmt.Errorf("path %q: names a folder", e.Path)
	}
	if row[1] != "" {
		algorithm, text, _ := strings.Cut(row[1], "=")
		h := RecordHash(algorithm)
		if h == nil {
			return e, fmt.Errorf("path %q: hash algorithm %q is not sha256, sha384 or sha512", e.Path, algorithm)
		}
		digest, err := recordEncoding.DecodeString(text)
		if err != nil || len(digest) != h.Size() {
			return e, fmt.Errorf("path %q: malformed %s digest %q", e.Path, algorithm, text)
		}
		e.Algorithm, e.Digest = algorithm, digest
	}
	if row[2] != "" {
		size, err := strconv.ParseInt(row[2], 10, 64)
		if err != nil || strconv.FormatInt(size, 10) != row[2] || size < 0 {
			return e, fmt.Errorf("path %q: malformed size %q", e.Path, row[2])
		}
		e.Size = size
	}
	return e, nil
}

var recordEncoding = base64.RawURLEncoding.Strict()

// RecordHash returns the hash of an algorithm that a RECORD names, or nil for one that a wheel must
// not use.
func RecordHash(algorithm string) hash.Hash {
	switch algorithm {
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return nil
}

// Lookup returns the entry of path, or nil. The entry belongs to the record.
func (r *Record) Lookup(path string) *RecordEntry {
	i := slices.IndexFunc(r.Entries, func(e RecordEntry) bool { return e.Path == path })
	if i < 0 {
		return nil
	}
	return &r.Entries[i]
}

// Bytes writes the entries in their order, lines ended by LF, quoting a path
// only where it must be. It refuses what [ParseRecord] would refuse, so that
// reading the result gives the same record.
func (r *Record) Bytes() ([]byte, error) {
	var b bytes.Buffer
	seen := make(map[string]bool, len(r.Entries))
	for _, e := range r.Entries {
		row := []string{e.Path, "", ""}
		if e.Algorithm != "" || e.Digest != nil {
			row[1] = e.Algorithm + "=" + recordEncoding.EncodeToString(e.Digest)
		}
		if e.Size >= 0 {
			row[2] = strconv.FormatInt(e.Size, 10)
		}
		if _, err := parseRecordRow(row); err != nil {
			return nil, fmt.Errorf("write RECORD: %w", err)
		}
		if seen[e.Path] {
			return nil, fmt.Errorf("write RECORD: %q listed twice", e.Path)
		}
		seen[e.Path] = true
		if strings.ContainsAny(e.Path, `,"`) {
			row[0] = `"` + strings.ReplaceAll(e.Path, `"`, `""`) + `"`
		}
		b.WriteString(strings.Join(row, ","))
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}

// csvReader reads the dialect of Python's csv.writer. encoding/csv is not used
// because it collects a row of any length before it returns.
type csvReader struct {
	r     *bufio.Reader
	line  int      // number of the row returned last
	row   []string // the memory of the row
	field []byte   // and of the field that is being read
}

// maxRecordLine bounds a row: a path with every byte doubled by quoting, the
// longest digest and a size.
const maxRecordLine = 2*maxMemberName + 256

// next returns the columns of the next row that is not empty. They are good until the next call.
func (c *csvReader) next() ([]string, error) {
	for {
		c.line++
		row, err := c.readRow()
		if err != nil || len(row) != 1 || row[0] != "" {
			return row, err
		}
	}
}

func (c *csvReader) readRow() ([]string, error) {
	const (
		fieldStart = iota
		unquoted
		quoted
		quoteInQuoted
	)
	row, field, state := c.row[:0], c.field[:0], fieldStart
	defer func() { c.row, c.field = row, field }()
	for length := 0; ; length++ {
		b, err := c.r.ReadByte()
		if errors.Is(err, io.EOF) {
			switch {
			case state == quoted:
				return nil, errors.New("quoted field without an end")
			case length == 0:
				return nil, io.EOF
			}
			row = append(row, string(field))
			return row, nil
		}
		if err != nil {
			return nil, err
		}
		if length == maxRecordLine {
			return nil, fmt.Errorf("longer than %d bytes", maxRecordLine)
		}
		switch {
		case state == quoted && b == '"':
			state = quoteInQuoted
		case state == quoted:
			field = append(field, b)
		case b == '\n':
			row = append(row, string(field))
			return row, nil
		case b == '\r':
			if next, err := c.r.Peek(1); err == nil && next[0] != '\n' {
				return nil, errors.New("carriage return inside a line")
			}
		case b == ',':
			row, field, state = append(row, string(field)), field[:0], fieldStart
		case b == '"' && state == fieldStart:
			state = quoted
		case b == '"' && state == quoteInQuoted:
			field, state = append(field, b), quoted
		case b == '"' || state == quoteInQuoted:
			return nil, errors.New("misplaced quote")
		default:
			field, state = append(field, b), unquoted
		}
	}
}
