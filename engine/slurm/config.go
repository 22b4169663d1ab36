package slurm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
)

// ConfigFile is where an administrator says once how kiln uses the cluster.
const ConfigFile = "/etc/kiln/slurm.json"

// Config is that file. docs/cluster.md explains the fields.
type Config struct {
	Partition  string   `json:"partition"`
	Account    string   `json:"account"`
	QOS        string   `json:"qos"`
	Constraint string   `json:"constraint"`
	Args       []string `json:"args"`
	// Sandbox is what rows are built in on a node: host, podman or docker. Prefix stands before
	// kiln in the job.
	Sandbox string   `json:"sandbox"`
	Prefix  []string `json:"prefix"`
	// CPUs and Memory are what a row may use at most.
	CPUs   int    `json:"cpus"`
	Memory string `json:"memory"`
	// MaxPerArray limits the tasks of one array that run at once, MaxQueued all rows that Slurm
	// has, running ones among them.
	MaxPerArray int `json:"max_running_per_array"`
	MaxQueued   int `json:"max_queued"`
	// Scratch is a folder of each node's own. CacheRemote is the compile cache of the site.
	Scratch     string `json:"scratch"`
	CacheRemote string `json:"cache_remote"`
	// TimeLimit is that of the queue, if it is not the partition's. Grace, Poll and Beat are those
	// of
	// [Options].
	TimeLimit Duration `json:"time_limit"`
	Grace     Duration `json:"grace"`
	Poll      Duration `json:"poll"`
	Beat      Duration `json:"beat"`
}

// Duration is a time such as "90s" in JSON.
type Duration time.Duration

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	*d = Duration(v)
	return err
}

// ReadConfig reads a file of settings. With an empty name it reads [ConfigFile], if there is one.
func ReadConfig(name string) (*Config, error) {
	c := &Config{}
	given := name != ""
	name = cmp.Or(name, ConfigFile)
	text, err := fsx.ReadFile(name, 1<<20)
	if errors.Is(err, fs.ErrNotExist) && !given {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Slurm settings: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			field = strings.Trim(field, `"`)
			near := diag.Suggest(field, []string{
				"partition", "account", "qos", "constraint", "args", "sandbox", "prefix", "cpus", "memory", "max_running_per_array", "max_queued", "scratch",
				"cache_remote", "time_limit", "grace", "poll", "beat",
			})
			if near != "" {
				near = "; did you mean " + near + "?"
			}
			return nil, fmt.Errorf("%s: there is no setting %q%s", name, field, near)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if !slices.Contains([]string{"", "host", "podman", "docker"}, c.Sandbox) {
		return nil, fmt.Errorf("%s: sandbox %q: use host, podman or docker", name, c.Sandbox)
	}
	if c.CPUs < 0 || c.MaxPerArray < 0 || c.MaxQueued < 0 {
		return nil, fmt.Errorf("%s: cpus, max_running_per_array and max_queued are not negative", name)
	}
	return c, nil
}

// mostTasks is how many tasks an array has at most, whatever the site allows.
const mostTasks = 500

// Options are those of a runner, as far as the settings and the cluster say.
func (c *Config) Options(site *Site) Options {
	return Options{
		Prefix: c.Prefix, Partition: c.Partition, Account: c.Account, QOS: c.QOS, Constraint: c.Constraint, Args: c.Args,
		MaxPerArray: c.MaxPerArray, MaxTasks: min(cmp.Or(site.MaxArray, mostTasks), mostTasks),
		TimeLimit: cmp.Or(time.Duration(c.TimeLimit), site.TimeLimit), Grace: time.Duration(c.Grace), Poll: time.Duration(c.Poll), Beat: time.Duration(c.Beat),
	}
}

// OwnerName makes an owner of any text: it has only what the name of a job may have.
func OwnerName(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:6])
}

// CopyProgram copies a program to a folder that the nodes see, under a name that tells its bytes:
// it may be installed on the login node alone, and it may be replaced while jobs wait.
func CopyProgram(program, dir string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	h := sha256.New()
	if _, err := io.Copy(h, from); err != nil {
		return "", err
	}
	to := filepath.Join(dir, "kiln-"+hex.EncodeToString(h.Sum(nil)[:8]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	f, err := fsx.Create(to)
	if err != nil {
		return "", err
	}
	defer f.Abort() //nolint:errcheck // nothing to do after Commit
	if _, err := io.Copy(f, from); err != nil {
		return "", err
	}
	if err := f.Commit(); err != nil {
		return "", err
	}
	return to, os.Chmod(to, 0o777)
}
