package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kiln-build/kiln/build/launcher"
)

// ReadRecords reads the records of a row. A file that is not there has none; a line that a killed
// launcher left unfinished is dropped.
func ReadRecords(path string) ([]launcher.Entry, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRecords(text)
}

func parseRecords(text []byte) ([]launcher.Entry, error) {
	var records []launcher.Entry
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r launcher.Entry
		if err := json.Unmarshal(line, &r); err != nil {
			if _, torn := errors.AsType[*json.SyntaxError](err); torn {
				continue
			}
			return nil, fmt.Errorf("call %d: %w", n, err)
		}
		records = append(records, r)
	}
	return records, nil
}
