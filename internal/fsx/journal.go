package fsx

import (
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendRecord appends one line of a journal to dst: eight hexadecimal digits of a CRC-32C, a
// space, and the record as JSON. Journals are only appended to, so that what a crash damages is the
// end.
func AppendRecord(dst []byte, record any) ([]byte, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return dst, err
	}
	dst = append(append(dst, lineSum(text)...), ' ')
	return append(append(dst, text...), '\n'), nil
}

// CheckRecord returns the JSON of a whole line of a journal, with its line end, or nil if the line
// is torn or damaged.
func CheckRecord(line []byte) []byte {
	if len(line) < 10 || line[8] != ' ' || line[len(line)-1] != '\n' {
		return nil
	}
	text := line[9 : len(line)-1]
	if string(line[:8]) != lineSum(text) {
		return nil
	}
	return text
}

func lineSum(text []byte) string {
	sum := crc32.Checksum(text, castagnoli)
	return hex.EncodeToString([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}
