package engine

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is what the journal of a state folder says. It is a copy that belongs to the caller.
type State struct {
	// Started and Ended are those of the last run, which PID on Host made. Ended is zero while it
	// is at work, and when it was killed: [Active] tells which.
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	PID     int       `json:"pid,omitempty"`
	Host    string    `json:"host,omitempty"`
	// Jobs has the jobs of the last run in its order, then those of earlier runs.
	Jobs []JobState `json:"jobs"`
}

// JobState is what is known of a job.
type JobState struct {
	ID string `json:"id"`
	// Current says that the job belongs to the last run.
	Current bool   `json:"current,omitempty"`
	Class   string `json:"class,omitempty"`
	Status  Status `json:"status"`
	// Attempt is the number of the last attempt, over all runs; zero if there was none. The other
	// fields of this group are about it.
	Attempt int       `json:"attempt,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	Shrink  int       `json:"shrink,omitempty"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Stage is the one at work or, after a failure, the one that failed.
	Stage string `json:"stage,omitempty"`
	Done  int    `json:"done,omitempty"`
	Total int    `json:"total,omitempty"`
	Unit  string `json:"unit,omitempty"`
	// PeakMemoryBytes is that of the last attempt that ended.
	PeakMemoryBytes int64 `json:"peak_memory_bytes,omitempty"`
	// Cause and Reason say why the job failed, was skipped or canceled, or is to be tried again.
	Cause  Cause  `json:"cause,omitempty"`
	Reason string `json:"reason,omitempty"`

	// Finished is the last success, nil if there was none. It outlives later failures.
	Finished *Finished `json:"finished,omitempty"`
	// Learned is what is expected of the next attempt.
	Learned Learned `json:"learned,omitzero"`
	// Folders lists the attempts whose folders are kept for the next one, oldest first.
	Folders []Folder `json:"folders,omitempty"`

	dir string // of the attempts
}

// Finished is an attempt that succeeded.
type Finished struct {
	Attempt int           `json:"attempt"`
	Digest  string        `json:"digest"`
	Time    time.Time     `json:"time"`
	Wall    time.Duration `json:"wall"`
	Result  Result        `json:"result"`
}

// Folder is the folder of an attempt without success.
type Folder struct {
	Attempt int    `json:"attempt"`
	Digest  string `json:"digest"`
}

// learnedPeaks is of how many successes the largest peak counts: one that found everything in a
// cache must not make the next one, which does not, look small.
const learnedPeaks = 5

// Learned is what successful attempts of a job used. The zero value means that nothing was learned.
type Learned struct {
	// PeakMemoryBytes and DiskBytes are the largest of the last five successes.
	PeakMemoryBytes int64 `json:"peak_memory_bytes,omitempty"`
	DiskBytes       int64 `json:"disk_bytes,omitempty"`
	// Wall is the time of the last success, and Shrink how it was reached.
	Wall   time.Duration `json:"wall,omitempty"`
	Shrink int           `json:"shrink,omitempty"`
	// Peaks and Disks are the values of the last five successes, the newest last.
	Peaks []int64 `json:"peaks,omitempty"`
	Disks []int64 `json:"disks,omitempty"`
}

func (l *Learned) add(r Result, wall time.Duration, shrink int) {
	l.Peaks, l.PeakMemoryBytes = remember(l.Peaks, r.PeakMemoryBytes)
	l.Disks, l.DiskBytes = remember(l.Disks, r.DiskBytes)
	l.Wall, l.Shrink = wall, shrink
}

func remember(list []int64, n int64) ([]int64, int64) {
	if n > 0 {
		if list = append(slices.Clip(list), n); len(list) > learnedPeaks {
			list = list[1:]
		}
	}
	if len(list) == 0 {
		return nil, 0
	}
	return list, slices.Max(list)
}

// Dir is the folder of the last attempt; empty if there was none. It need not exist any more.
func (j *JobState) Dir() string {
	if j.Attempt == 0 {
		return ""
	}
	return j.folder(j.Attempt)
}

// LogPath is the log of the last attempt; empty if there was none.
func (j *JobState) LogPath() string {
	if j.Attempt == 0 {
		return ""
	}
	return filepath.Join(j.Dir(), LogName)
}

func (j *JobState) folder(attempt int) string {
	return filepath.Join(j.dir, folderName(j.ID)+"."+strconv.Itoa(attempt))
}

// Job returns what is known of a job, or nil.
func (s *State) Job(id string) *JobState {
	for i := range s.Jobs {
		if s.Jobs[i].ID == id {
			return &s.Jobs[i]
		}
	}
	return nil
}

// ReadState reads the journal of a state folder. It takes no lock: a run may be at work, and what
// it has not completely written yet is left out. A folder without a journal has an empty state.
func ReadState(dir string) (*State, error) {
	f, err := os.Open(filepath.Join(dir, journalFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &State{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	book := newBook(filepath.Join(dir, attemptsDir))
	if _, err := readJournal(f, book); err != nil {
		return nil, fmt.Errorf("journal %s: %w", f.Name(), err)
	}
	return book.state(), nil
}

// folderName makes a file name of an ID. Names that are not an ID as it is end in a part of its
// hash.
func folderName(id string) string {
	const limit = 120
	clean := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || strings.ContainsRune("._+=@-", r) {
			return r
		}
		if r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, id)
	// Capitals: some file systems do not tell them from small letters.
	if clean == id && len(id) <= limit && id[0] != '.' && strings.ToLower(id) == id {
		return id
	}
	clean = strings.TrimLeft(clean, ".")
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%s-%x", clean[:min(len(clean), limit)], sum[:4])
}

// book is the state while it is being written: the journal's records applied one after the other.
type book struct {
	dir     string // of the attempts
	jobs    map[string]*JobState
	order   []string // of first appearance
	plan    []string // of the last run
	started time.Time
	ended   time.Time
	pid     int
	host    string
}

func newBook(dir string) *book { return &book{dir: dir, jobs: make(map[string]*JobState)} }

func (b *book) job(id string) *JobState {
	j := b.jobs[id]
	if j == nil {
		j = &JobState{ID: id, Status: StatusPending, dir: b.dir}
		b.jobs[id] = j
		b.order = append(b.order, id)
	}
	return j
}

func (b *book) state() *State {
	s := &State{Started: b.started, Ended: b.ended, PID: b.pid, Host: b.host, Jobs: make([]JobState, 0, len(b.jobs))}
	current := make(map[string]bool, len(b.plan))
	for _, id := range b.plan {
		if !current[id] {
			current[id] = true
			j := *b.job(id)
			j.Current = true
			s.Jobs = append(s.Jobs, j)
		}
	}
	for _, id := range b.order {
		if !current[id] {
			s.Jobs = append(s.Jobs, *b.jobs[id])
		}
	}
	return s
}

// apply is the meaning of a record. It must not fail: what does not fit together is
// taken as it comes, since the journal's checksums say that it was written so.
func (b *book) apply(r *record) {
	switch r.Kind {
	case recordRun:
		if !r.SamePlan {
			b.plan = r.Plan
		}
		b.started, b.ended, b.pid, b.host = r.Time, time.Time{}, r.PID, r.Host
		for _, id := range b.plan {
			// Attempts that are lost have got their end before: one that is at work here was kept.
			if j := b.job(id); j.Status != StatusDone && j.Status != StatusRunning {
				j.Status = StatusPending
			}
		}
	case recordRunEnd:
		b.ended = r.Time
	case recordSubmitted:
		b.job(r.Job).Status = StatusPending
	case recordAttempt:
		j := b.job(r.Job)
		j.Status, j.Attempt, j.Digest, j.Class, j.Shrink = StatusRunning, r.Attempt, r.Digest, r.Class, r.Shrink
		j.Started, j.Ended = r.Time, time.Time{}
		j.Stage, j.Done, j.Total, j.Unit = "", 0, 0, ""
		j.Cause, j.Reason = "", ""
	case recordStage:
		j := b.job(r.Job)
		j.Stage, j.Done, j.Total, j.Unit = r.Stage, 0, 0, ""
	case recordStageDone:
		if j := b.job(r.Job); j.Stage == r.Stage && r.Error == "" {
			j.Stage = ""
		}
	case recordProgress:
		j := b.job(r.Job)
		j.Done, j.Total, j.Unit = r.Done, r.Total, r.Text
	case recordEnd:
		b.end(r)
	case recordSnapshot:
		if r.Snapshot != nil {
			j := b.job(r.Snapshot.ID)
			*j = *r.Snapshot
			j.dir = b.dir
		}
	}
}

func (b *book) end(r *record) {
	j := b.job(r.Job)
	j.Status, j.Cause, j.Reason, j.Ended = r.Status, r.Cause, r.Error, r.Time
	if r.Attempt == 0 {
		return // skipped or canceled without one
	}
	result := Result{PeakMemoryBytes: r.Peak, DiskBytes: r.Disk, Outputs: r.Outputs}
	j.PeakMemoryBytes = r.Peak
	switch r.Status {
	case StatusDone:
		j.Finished = &Finished{Attempt: r.Attempt, Digest: j.Digest, Time: r.Time, Wall: r.Wall, Result: result}
		j.Learned.add(result, r.Wall, j.Shrink)
		j.Stage, j.Folders = "", nil
	case StatusFailed, StatusSkipped:
		j.Folders = []Folder{{r.Attempt, j.Digest}}
		j.Shrink = 0 // the next run begins anew
	default:
		j.Folders = append(slices.Clip(j.Folders), Folder{r.Attempt, j.Digest})
		if r.Cause == CauseMemory {
			j.Shrink++
		}
	}
}

// keeps reports whether the folder of an attempt is still of use.
func (j *JobState) keeps(attempt int) bool {
	return attempt == j.Attempt && j.Status == StatusRunning || j.Finished != nil && j.Finished.Attempt == attempt ||
		slices.ContainsFunc(j.Folders, func(f Folder) bool { return f.Attempt == attempt })
}

// earlier returns the folders that an attempt with this digest can use, the newest first.
func (j *JobState) earlier(digest string) []string {
	var list []string
	for _, f := range slices.Backward(j.Folders) {
		if f.Digest != digest {
			continue
		}
		// One that was killed at once left an empty folder, which is of no use.
		if dir := j.folder(f.Attempt); hasFiles(dir) {
			list = append(list, dir)
		}
	}
	return list
}

func hasFiles(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) > 0
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}
