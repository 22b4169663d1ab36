package exl2

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// The journal records finished shards, so that an interrupted write goes on after the last of them.
// Its lines are those of [fsx.AppendRecord]; one that was cut off by a crash is dropped, and with
// it everything after.

const journalName = "journal"

// record is one line of the journal. Exactly one of the fields is set.
type record struct {
	Start   *startRecord `json:"start,omitempty"`
	Shard   *shardRecord `json:"shard,omitempty"`
	Publish bool         `json:"publish,omitempty"` // everything is on disk; the rename comes next
}

// startRecord says which plan the folder is being built for.
type startRecord struct {
	Format int    `json:"format"`
	Plan   string `json:"plan"`
	Hash   bool   `json:"hash"`
}

// shardRecord says that a shard is complete and on disk.
type shardRecord struct {
	Name    string      `json:"name"`
	Size    int64       `json:"size"`
	ModTime time.Time   `json:"mod_time"`
	SHA256  string      `json:"sha256,omitempty"`
	Tensors []string    `json:"tensors,omitempty"` // digests in the order of the plan
	Values  []NonFinite `json:"values,omitempty"`
}

type journal struct{ f *os.File }

// openJournal returns the intact records of the file and a journal that appends after them.
func openJournal(path string) (*journal, []record, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, err
	}
	records, end, err := readJournal(f)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return &journal{f}, records, nil
}

// peekJournal reads a journal that may not exist.
func peekJournal(path string) ([]record, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, _, err := readJournal(f)
	return records, err
}

func readJournal(r io.Reader) (records []record, end int64, err error) {
	br := bufio.NewReader(r)
	for {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return records, end, nil // what has no newline was cut off
		}
		if err != nil {
			return nil, 0, err
		}
		var rec record
		if text := fsx.CheckRecord(line); text == nil || json.Unmarshal(text, &rec) != nil {
			return records, end, nil
		}
		records = append(records, rec)
		end += int64(len(line))
	}
}

// append writes a record and waits until it is on disk.
func (j *journal) append(rec record) error {
	line, err := fsx.AppendRecord(nil, rec)
	if err != nil {
		return err
	}
	if _, err := j.f.Write(line); err != nil {
		return err
	}
	return j.f.Sync()
}

// restart empties the journal.
func (j *journal) restart() error {
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	_, err := j.f.Seek(0, io.SeekStart)
	return err
}

func (j *journal) close() error { return j.f.Close() }

func (r *shardRecord) sortValues() {
	slices.SortFunc(r.Values, func(a, b NonFinite) int { return strings.Compare(a.Tensor, b.Tensor) })
}
