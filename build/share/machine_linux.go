package share

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// sharedMachine is where the kilns of one machine meet: a folder with a claim of each. A claim
// counts as long as its writer holds the lock of the file, so a kiln that ends, in any way, gives
// back what it had. There is no server and no leader.
type sharedMachine struct {
	dir    string
	ledger *os.File // its lock is held while claims are read and written
	file   *os.File // the claim of this kiln, locked as long as it lives
	last   []byte
}

const claimSuffix = ".claim"

// machineDir is the folder of the kilns that share memory with this process: all of the machine, or
// all of the control group if that has a limit of its own, as in a container or under a batch
// system.
func machineDir(limited bool) string {
	name := "kiln-slots"
	if group, err := os.ReadFile("/proc/self/cgroup"); limited && err == nil {
		sum := sha256.Sum256(group)
		name += "-" + hex.EncodeToString(sum[:4])
	}
	return filepath.Join(os.TempDir(), name)
}

// openMachine joins the kilns of a machine. The limit is at least the largest limit of the kilns
// that are already there.
func openMachine(dir string, own *claim) (_ *sharedMachine, err error) {
	// All users of a machine meet: like the folder for temporary files, it is everybody's.
	if err := os.Mkdir(dir, 0o777); err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky)
		if err != nil {
			return nil, err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	m := &sharedMachine{dir: dir}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	if m.ledger, err = openShared(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	all, err := m.begin("")
	if err != nil {
		return nil, err
	}
	for i := range all {
		own.Limit.CPU, own.Limit.MemoryBytes = max(own.Limit.CPU, all[i].Limit.CPU), max(own.Limit.MemoryBytes, all[i].Limit.MemoryBytes)
	}
	if m.file, err = os.CreateTemp(dir, fmt.Sprintf("%d-*%s", os.Getpid(), claimSuffix)); err != nil {
		return nil, err
	}
	own.name = filepath.Base(m.file.Name())
	if err := m.file.Chmod(0o644); err != nil {
		return nil, err
	}
	if err := flock(m.file, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	return m, m.end(own)
}

// openShared opens a file of all users. One of another user must not be opened as if it were to be
// created: kernels refuse that in folders such as this one.
func openShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	}
	return f, err
}

// begin stops the claims of the machine and reads those of others than own. Whatever it returns,
// end has to follow.
func (m *sharedMachine) begin(own string) ([]claim, error) {
	if err := flock(m.ledger, syscall.LOCK_EX); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return nil, err
	}
	var all []claim
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, claimSuffix) && name != own {
			if c, ok := readClaim(filepath.Join(m.dir, name)); ok {
				c.name = name
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// end writes the claim of this kiln and lets others go on.
func (m *sharedMachine) end(own *claim) error {
	own.Format = claimFormat
	text, err := json.Marshal(own)
	if err == nil && !bytes.Equal(text, m.last) {
		// Other kilns wait for the lock meanwhile, and half a claim counts as that of a dead kiln.
		if err = m.file.Truncate(0); err == nil {
			_, err = m.file.WriteAt(text, 0)
		}
		m.last = text
	}
	return errors.Join(err, flock(m.ledger, syscall.LOCK_UN))
}

// close leaves.
func (m *sharedMachine) close() {
	if m.file != nil {
		os.Remove(m.file.Name())
		_ = m.file.Close()
	}
	if m.ledger != nil {
		_ = m.ledger.Close()
	}
}

// readClaim reads a claim, and removes it if its writer is dead.
func readClaim(path string) (claim, bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return claim{}, false
	}
	defer f.Close()
	if flock(f, syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		os.Remove(path) // that of another user stays, and counts for nothing
		return claim{}, false
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return claim{}, false
	}
	return parseClaim(text)
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}

// runPrefix begins the names of folders with sockets.
const runPrefix = "kiln-run-"

// newRunDir makes a folder that exists as long as its maker, or a little longer: the next one
// removes those of the dead. Only this user can enter it.
func newRunDir() (dir string, lock *os.File, err error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*"))
	for _, dir := range old {
		removeDead(dir)
	}
	for range 10 {
		if dir, err = os.MkdirTemp("", runPrefix); err != nil {
			return "", nil, err
		}
		if lock, err = os.Create(filepath.Join(dir, "lock")); err == nil {
			if err = flock(lock, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
				return dir, lock, nil
			}
			_ = lock.Close() // taken for dead in this very moment
		}
	}
	return "", nil, err
}

// removeDead removes a folder whose maker is gone. What is not a folder of this user is not
// touched.
func removeDead(dir string) {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if flock(f, syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		os.RemoveAll(dir)
	}
}
