package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// The journal is one file of lines, see [fsx.AppendRecord]. The first line says what the file is.
//
// A record is given to the system before the engine acts on it, so a killed process loses nothing
// that it acted on. The file is synced in the background a second after a change at the latest, and
// before Run returns: a machine that loses power may run the jobs of that last second again.
// Nothing worse can follow, so no job ever waits for a disk.
//
// Lines at the end that are torn are dropped. A damaged line with a good one after it is an error,
// since something that was known is not known any more.

// journalHeader is the first line. It has no time in it, so that a torn one is recognized.
var journalHeader = appendLine(nil, &record{Kind: recordJournal, Format: journalFormat})

const (
	journalFormat = 1

	// syncPause is how long a record may be only in the system's memory.
	syncPause = time.Second

	// A journal of compactMin bytes that is compactFactor times as large as the state is rewritten.
	compactMin    = 1 << 20
	compactFactor = 4
)

type recordKind string

const (
	recordJournal   recordKind = "journal"
	recordRun       recordKind = "run"
	recordRunEnd    recordKind = "run_end"
	recordSubmitted recordKind = "submitted" // a job that was done is to be run again
	recordAttempt   recordKind = "attempt"
	recordStage     recordKind = "stage"
	recordStageDone recordKind = "stage_done"
	recordProgress  recordKind = "progress"
	recordEnd       recordKind = "end" // of an attempt or, without one, of a job
	recordSnapshot  recordKind = "snapshot"
)

// record is one line. Which fields are set depends on Kind; see book.apply. Kinds that are
// not known are ignored.
type record struct {
	Kind   recordKind `json:"kind"`
	Time   time.Time  `json:"time,omitzero"`
	Format int        `json:"format,omitempty"`

	PID      int      `json:"pid,omitempty"`
	Host     string   `json:"host,omitempty"`
	Plan     []string `json:"plan,omitempty"`
	SamePlan bool     `json:"same_plan,omitempty"`

	Job       string     `json:"job,omitempty"`
	Attempt   int        `json:"attempt,omitempty"`
	Digest    string     `json:"digest,omitempty"`
	Class     string     `json:"class,omitempty"`
	Shrink    int        `json:"shrink,omitempty"`
	Resources *Resources `json:"resources,omitempty"`

	Stage string `json:"stage,omitempty"`
	Text  string `json:"text,omitempty"`
	Done  int    `json:"done,omitempty"`
	Total int    `json:"total,omitempty"`

	Status  Status          `json:"status,omitempty"`
	Cause   Cause           `json:"cause,omitempty"`
	Error   string          `json:"error,omitempty"`
	Wall    time.Duration   `json:"wall,omitempty"`
	Peak    int64           `json:"peak,omitempty"`
	Disk    int64           `json:"disk,omitempty"`
	Outputs json.RawMessage `json:"outputs,omitempty"`

	Snapshot *JobState `json:"snapshot,omitempty"`
}

func appendLine(dst []byte, r *record) []byte {
	dst, err := fsx.AppendRecord(dst, r)
	if err != nil {
		// Only Outputs could do that, and it is checked before.
		panic(fmt.Sprintf("engine: record of the journal: %v", err))
	}
	return dst
}

// readJournal applies the records to the book and returns where the last good one ends.
func readJournal(r io.Reader, b *book) (end int64, err error) {
	var (
		in     = bufio.NewReaderSize(r, 1<<16)
		offset int64
		torn   int // number of the first damaged line
		first  []byte
	)
	for number := 1; ; number++ {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return 0, err
		}
		if len(line) == 0 {
			break
		}
		offset += int64(len(line))
		if number == 1 {
			first = line
		}
		text := fsx.CheckRecord(line)
		switch {
		case text == nil:
			if torn == 0 {
				torn = number
			}
			continue
		case torn > 0:
			return 0, fmt.Errorf("line %d is damaged, but line %d is not: restore the file from a copy, or move it away to begin anew", torn, number)
		}
		var rec record
		if err := json.Unmarshal(text, &rec); err != nil {
			return 0, fmt.Errorf("line %d: %w", number, err)
		}
		if number == 1 {
			if rec.Kind != recordJournal {
				return 0, errors.New("line 1 does not say that this is a journal")
			}
			if rec.Format != journalFormat {
				return 0, fmt.Errorf("format %d is not known, only %d: a newer kiln wrote it", rec.Format, journalFormat)
			}
		}
		b.apply(&rec)
		end = offset
	}
	// A first line that is not the beginning of ours was not torn: another program wrote the file.
	if torn == 1 && !bytes.HasPrefix(journalHeader, first) && len(bytes.Trim(first, "\x00")) > 0 {
		return 0, errors.New("this is not a journal")
	}
	return end, nil
}

// journal appends to the file. It belongs to one goroutine.
type journal struct {
	f    *os.File
	book *book
	buf  []byte // not yet written
	size int64  // of what is written
	err  error  // of the first write that failed; nothing is written after it

	syncs  chan struct{} // asks the syncer; closed at the end
	synced chan error    // its first error, then closed
	timer  *time.Timer   // fires when the syncer is to be asked
	armed  bool
}

func openJournal(path string) (_ *journal, _ *book, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("journal %s: %w", path, err), f.Close())
		}
	}()
	b := newBook(filepath.Join(filepath.Dir(path), attemptsDir))
	end, err := readJournal(f, b)
	if err != nil {
		return nil, nil, err
	}
	if end > compactMin {
		if small := b.encode(); end > compactFactor*int64(len(small)) {
			if err := errors.Join(f.Close(), fsx.WriteFile(path, small, 0o666)); err != nil {
				return nil, nil, err
			}
			if f, err = os.OpenFile(path, os.O_RDWR, 0o666); err != nil {
				return nil, nil, err
			}
			end = int64(len(small))
		}
	}
	if err := f.Truncate(end); err != nil {
		return nil, nil, err
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return nil, nil, err
	}
	j := &journal{f: f, book: b, size: end, syncs: make(chan struct{}, 1), synced: make(chan error, 1), timer: time.NewTimer(time.Hour)}
	j.timer.Stop()
	if end == 0 {
		j.buf = append(j.buf, journalHeader...)
	}
	if err := j.flush(); err != nil {
		return nil, nil, err
	}
	if err := fsx.SyncDir(filepath.Dir(path)); err != nil {
		return nil, nil, err
	}
	go j.syncer()
	return j, b, nil
}

// encode returns a journal that has the same state in as few records as possible.
func (b *book) encode() []byte {
	text := bytes.Clone(journalHeader)
	if !b.started.IsZero() {
		text = appendLine(text, &record{Kind: recordRun, Time: b.started, PID: b.pid, Host: b.host, Plan: b.plan})
	}
	for _, id := range b.order {
		text = appendLine(text, &record{Kind: recordSnapshot, Snapshot: b.jobs[id]})
	}
	if !b.ended.IsZero() {
		text = appendLine(text, &record{Kind: recordRunEnd, Time: b.ended})
	}
	return text
}

// add applies a record to the book and puts it into the buffer.
func (j *journal) add(r *record) {
	if r.Time.IsZero() {
		r.Time = time.Now().UTC().Round(0)
	}
	j.book.apply(r)
	j.buf = appendLine(j.buf, r)
}

// flush gives the buffer to the system. After an error it does nothing but return it: a line after
// half a line would make the journal a damaged one.
func (j *journal) flush() error {
	if len(j.buf) == 0 || j.err != nil {
		j.buf = j.buf[:0]
		return j.err
	}
	n, err := j.f.Write(j.buf)
	j.buf = j.buf[:0]
	if err != nil {
		// Half a line at the end is no harm either, if this does not work.
		_ = j.f.Truncate(j.size)
		j.err = err
		return err
	}
	j.size += int64(n)
	if !j.armed {
		j.armed = true
		j.timer.Reset(syncPause)
	}
	return nil
}

// due is called when timer has fired.
func (j *journal) due() {
	j.armed = false
	select {
	case j.syncs <- struct{}{}:
	default: // it is behind; it will see these bytes too
	}
}

func (j *journal) syncer() {
	defer close(j.synced)
	for range j.syncs {
		if err := j.f.Sync(); err != nil {
			j.synced <- err
			for range j.syncs {
			}
			return
		}
	}
}

func (j *journal) close() error {
	j.timer.Stop()
	close(j.syncs)
	err := <-j.synced
	if j.err == nil { // else Run has told it
		err = errors.Join(err, j.flush(), j.f.Sync())
	}
	if err = errors.Join(err, j.f.Close()); err != nil {
		return fmt.Errorf("journal %s: %w", j.f.Name(), err)
	}
	return nil
}
