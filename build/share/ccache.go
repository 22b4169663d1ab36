package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/launcher"
)

// CacheDir is the folder of ccache in a state folder.
func CacheDir(stateDir string) string { return filepath.Join(stateDir, "cache", "ccache") }

// RowStats is what the compilers of one row did, when it was built last.
type RowStats struct {
	Row      string         `json:"row"`
	Calls    int            `json:"calls"`
	Hits     int            `json:"hits"`
	Misses   int            `json:"misses"`
	Bypassed int            `json:"bypassed"`
	Failed   int            `json:"failed,omitempty"`
	Seconds  float64        `json:"seconds"`
	Reasons  map[string]int `json:"reasons,omitempty"`
}

// Stats is what was compiled and shared in a state folder.
type Stats struct {
	Rows []RowStats `json:"rows"`
	// Calls is what was asked for, Unique how many different results that were.
	Calls  int `json:"calls"`
	Unique int `json:"unique"`
	// Bytes is the size of the cache; Counters are those of ccache, null without it.
	Bytes    int64            `json:"bytes"`
	Counters map[string]int64 `json:"counters"`
}

// ReadStats reads what was compiled in a state folder, and the counters of ccache.
func ReadStats(ctx context.Context, state string) (*Stats, error) {
	all, err := ReadCalls(state)
	if err != nil {
		return nil, err
	}
	stats := &Stats{Rows: []RowStats{}}
	keys := map[string]bool{}
	for _, in := range all {
		row := RowStats{Row: in.Row}
		for _, u := range in.Calls {
			row.Calls++
			row.Seconds += u.Seconds
			switch u.Result {
			case launcher.Hit:
				row.Hits++
			case launcher.Miss:
				row.Misses++
			case launcher.Failed:
				row.Failed++
			case launcher.Bypass:
				row.Bypassed++
				if row.Reasons == nil {
					row.Reasons = map[string]int{}
				}
				row.Reasons[u.Why]++
			}
			if u.Key == "" {
				stats.Unique++ // no other row can share it
			}
			keys[u.Key] = true
		}
		stats.Calls += row.Calls
		stats.Rows = append(stats.Rows, row)
	}
	delete(keys, "")
	stats.Unique += len(keys)
	stats.Bytes, err = CacheSize(CacheDir(state))
	if err != nil {
		return nil, err
	}
	stats.Counters, err = ccacheCounters(ctx, CacheDir(state))
	return stats, err
}

// CacheSize adds up the files of the cache.
func CacheSize(dir string) (int64, error) {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a compiler may be at work
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n, err
}

// ccache runs this machine's ccache on the cache of a state folder.
func ccache(ctx context.Context, dir, maxSize string, args ...string) (string, error) {
	program, err := exec.LookPath("ccache")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(slices.DeleteFunc(cmd.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "CCACHE_") }),
		"CCACHE_DIR="+dir, "CCACHE_CONFIGPATH=/dev/null")
	if maxSize != "" {
		cmd.Env = append(cmd.Env, "CCACHE_MAXSIZE="+maxSize)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ccache %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// ccacheCounters returns ccache's own counters, nil if there is no ccache on this machine or no
// cache yet.
func ccacheCounters(ctx context.Context, dir string) (map[string]int64, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	text, err := ccache(ctx, dir, "", "--print-stats")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	counters := map[string]int64{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil && n != 0 {
				counters[name] = n
			}
		}
	}
	return counters, nil
}

// ErrNoCache means that nothing was compiled yet.
var ErrNoCache = errors.New("there is no compile cache here")

// CleanOptions says what is too much in a cache; zero means no limit.
type CleanOptions struct {
	MaxBytes  int64
	OlderThan time.Duration
}

// Clean removes what was not used for longest from the cache of a state folder. It returns the
// sizes before and after.
func Clean(ctx context.Context, stateDir string, o CleanOptions) (before, after int64, err error) {
	dir, err := filepath.Abs(CacheDir(stateDir))
	if err != nil {
		return 0, 0, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, ErrNoCache
	}
	if before, err = CacheSize(dir); err != nil {
		return 0, 0, err
	}
	if o.OlderThan > 0 {
		if _, err = ccache(ctx, dir, "", "--evict-older-than", fmt.Sprintf("%ds", int(o.OlderThan.Seconds()))); err != nil {
			return before, 0, needCCache(err)
		}
	}
	if o.MaxBytes > 0 {
		if _, err := ccache(ctx, dir, fmt.Sprintf("%dk", max(o.MaxBytes/1000, 1)), "--cleanup"); err != nil {
			return before, 0, needCCache(err)
		}
	}
	after, err = CacheSize(dir)
	return before, after, err
}

func needCCache(err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w\n  install ccache on this machine; it is what knows its cache", err)
	}
	return err
}
