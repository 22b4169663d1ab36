package jit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// fileStat is what the file system says of an input. Two equal ones mean the same content, unless
// the file had been changed just before it was looked at: clocks of file systems are coarse. Then
// the content is remembered too.
type fileStat struct {
	Path    string `json:"p"`
	Size    int64  `json:"s,omitempty"`
	MTime   int64  `json:"m,omitempty"`
	Changed int64  `json:"c,omitempty"`
	Inode   uint64 `json:"i,omitempty"`
	Absent  bool   `json:"a,omitempty"`
	Sum     string `json:"h,omitempty"`
}

// settled is how long ago a change must be for the times of a file to be trusted.
const settled = 50 * time.Millisecond

func statOf(path string) fileStat {
	info, err := os.Stat(path)
	if err != nil {
		return fileStat{Path: path, Absent: true}
	}
	s := fileStat{Path: path, Size: info.Size(), MTime: info.ModTime().UnixNano()}
	s.Inode, s.Changed = fsx.ChangeOf(info)
	if info.IsDir() {
		s.Size = 0
	}
	return s
}

// changedAt is when the file was last changed, as the system says it, or else as the file does.
func (s fileStat) changedAt() int64 {
	if s.Changed != 0 {
		return s.Changed
	}
	return s.MTime
}

// watch looks at a file so that a later look can tell whether it is the same.
func watch(path string, now time.Time) fileStat {
	s := statOf(path)
	if !s.Absent && s.changedAt() > now.Add(-settled).UnixNano() {
		s.Sum = contentOf(path)
	}
	return s
}

// contentOf is the SHA-256 of a file, or of the names in a folder; "" if it cannot be read.
func contentOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		names, err := f.Readdirnames(-1)
		if err != nil {
			return ""
		}
		slices.Sort(names)
		for _, n := range names {
			h.Write(append([]byte(n), 0))
		}
	} else if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}

// same looks whether an input is what it was.
func (s fileStat) same() bool {
	now := statOf(s.Path)
	sum := s.Sum
	s.Sum = ""
	return now == s && (sum == "" || sum == contentOf(s.Path))
}

// memoryFormat begins every file of an answer. The answer follows as JSON on a line of its own,
// then a line for each file that it depended on: thousands, so that reading them has to be quick.
const memoryFormat = "kiln-jit-memory/2"

func (s fileStat) append(b []byte) []byte {
	for _, n := range []int64{s.Size, s.MTime, s.Changed, int64(s.Inode)} {
		b = append(strconv.AppendInt(b, n, 36), ' ')
	}
	switch {
	case s.Absent:
		b = append(b, 'a')
	case s.Sum != "":
		b = append(b, s.Sum...)
	default:
		b = append(b, '-')
	}
	return append(append(append(b, ' '), s.Path...), '\n')
}

// parseStat reads a line that append wrote, without its end.
func parseStat(line string) (fileStat, bool) {
	var s fileStat
	var inode int64
	for _, n := range []*int64{&s.Size, &s.MTime, &s.Changed, &inode} {
		word, rest, ok := strings.Cut(line, " ")
		v, err := strconv.ParseInt(word, 36, 64)
		if !ok || err != nil {
			return s, false
		}
		*n, line = v, rest
	}
	s.Inode = uint64(inode)
	word, path, ok := strings.Cut(line, " ")
	switch word {
	case "-":
	case "a":
		s.Absent = true
	default:
		s.Sum = word
	}
	s.Path = path
	return s, ok && path != ""
}

// question names everything that decides an answer and is no file: the spec, options and variables.
func question(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		writePart(h, p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (s *Store) memoryPath(question string) string {
	return filepath.Join(s.dir(), memoryDir, question[:memoryName])
}

// memoryName is how much of a question is in the name of its file.
const memoryName = 32

// copyMemory remembers an answer under a second name.
func (s *Store) copyMemory(from, to string) {
	if text, err := os.ReadFile(s.memoryPath(from)); err == nil {
		_ = fsx.WriteFile(s.memoryPath(to), text, 0o666)
	}
}

// recall returns the answer to a question, if nothing has changed since.
func (s *Store) recall(question string) (Result, bool) {
	var r Result
	text, err := os.ReadFile(s.memoryPath(question))
	if err != nil {
		return r, false
	}
	lines := strings.Split(string(text), "\n")
	// Format, answer, files, and nothing after the last line end.
	if len(lines) < 3 || lines[0] != memoryFormat || lines[len(lines)-1] != "" || json.Unmarshal([]byte(lines[1]), &r) != nil {
		return r, false
	}
	lines = lines[2 : len(lines)-1]
	var wait sync.WaitGroup
	var changed atomic.Bool
	for part := range slices.Chunk(lines, max(1, (len(lines)+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))) {
		wait.Go(func() {
			for _, line := range part {
				w, ok := parseStat(line)
				if changed.Load() || !ok || !w.same() {
					changed.Store(true)
					return
				}
			}
		})
	}
	wait.Wait()
	return r, !changed.Load()
}

// remember keeps an answer. Not being able to is no failure: the next call takes longer.
func (s *Store) remember(question string, r Result, paths []string) {
	answer, err := json.Marshal(r)
	if err != nil {
		return
	}
	text := append([]byte(memoryFormat+"\n"), append(answer, '\n')...)
	slices.Sort(paths)
	now := time.Now()
	for _, p := range slices.Compact(paths) {
		if strings.ContainsRune(p, '\n') {
			return
		}
		text = watch(p, now).append(text)
	}
	path := s.memoryPath(question)
	if os.MkdirAll(filepath.Dir(path), 0o777) == nil {
		_ = fsx.WriteFile(path, text, 0o666)
	}
}
