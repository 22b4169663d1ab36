package fsx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// ErrLocked is what [LockedError] is: another process has the lock.
var ErrLocked = errors.New("locked")

// errNotOwner is returned by tryLock for a lock that another has.
var errNotOwner = errors.New("not the owner")

// Owner says who holds a lock. All fields are zero when it could not be read.
type Owner struct {
	PID  int       `json:"pid"`
	Host string    `json:"host"`
	Time time.Time `json:"time"` // since when
}

// LockedError is the error for a lock that another process, or another part of this one, holds.
// errors.Is(err, ErrLocked) is true.
type LockedError struct {
	Path  string // of the lock file
	Owner Owner
}

// Error names the owner, so that a user knows what to wait for or to stop.
func (e *LockedError) Error() string {
	if e.Owner.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d on %s since %s", e.Path, e.Owner.PID, e.Owner.Host,
		e.Owner.Time.Local().Format(time.DateTime))
}

// Is makes the error an [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// FileLock is a held lock. The lock belongs to the open file, so the system frees it
// when the process ends in any way.
type FileLock struct {
	file *os.File
}

// Lock takes the lock of the file at path, which is created if missing and is never removed, and
// waits for its turn. When ctx ends first, the error is both a [*LockedError] and the cause of ctx.
// The lock is advisory: it keeps out only callers that ask for it too. On a file system that has no
// locks the error is [errors.ErrUnsupported].
func Lock(ctx context.Context, path string) (*FileLock, error) {
	const first, last = 2 * time.Millisecond, 200 * time.Millisecond
	for pause := first; ; pause = min(2*pause, last) {
		lock, err := TryLock(path)
		if err == nil || !errors.Is(err, ErrLocked) {
			return lock, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: gave up waiting: %w", err, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// TryLock is [Lock] without waiting: the error is a [*LockedError] when another has it.
func TryLock(path string) (*FileLock, error) {
	// Not truncated here: until the lock is ours, the content is the other owner's.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	switch err := tryLock(f); {
	case errors.Is(err, errNotOwner):
		defer f.Close()
		return nil, &LockedError{Path: path, Owner: readOwner(f)}
	case err != nil:
		f.Close() //nolint:errcheck // Nothing was written; the lock's error is the one to report.
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	lock := &FileLock{file: f}
	if err := lock.writeOwner(); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), lock.Unlock())
	}
	return lock, nil
}

// Unlock frees the lock. Only the first call does something.
func (l *FileLock) Unlock() error {
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	// Unlocking by name and not only by closing: a child process that is being started in
	// this moment has a copy of the descriptor until it execs.
	return errors.Join(f.Truncate(0), unlock(f), f.Close())
}

// RemoveDir frees the lock and removes its file with the folder, which has nothing else in it. It
// leaves both to another process that took the lock in between, which happens only on Windows: no
// file that is open can be removed there.
func (l *FileLock) RemoveDir() error {
	if l.file == nil {
		return nil
	}
	return removeLocked(l, l.file.Name())
}

func (l *FileLock) writeOwner() error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	text, err := json.Marshal(Owner{PID: os.Getpid(), Host: host, Time: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err = l.file.WriteAt(append(text, '\n'), 0)
	return err
}

// readOwner is for messages only. It looks again for a moment when the owner has the
// lock but has not yet written its name.
func readOwner(f *os.File) Owner {
	for try := range 5 {
		var owner Owner
		text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
		if err == nil && json.Unmarshal(text, &owner) == nil {
			return owner
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
	}
	return Owner{}
}
