package launcher

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/depfile"
)

// DepTarget stands for the name of the object in dependency lists while they are in the cache: the
// name is another one for each Python, and the list is part of the result.
const DepTarget = "kiln"

// depFile is the dependency list of one call.
type depFile struct {
	path   string // where the compiler writes it
	kept   string // a copy for the record
	target string // what the caller wants to read in it; "" if the caller wants no list
	place  string // what the list calls the folder work; "" means as it is
	work   string
	device []byte // further lists for the record, of passes that the compiler's own does not name
}

// dependencies says where the list of a call goes.
func (c *call) dependencies(cwd, kept string) depFile {
	d := depFile{path: kept, kept: kept}
	if !c.wantDeps {
		return d
	}
	d.path = c.depPath
	if d.path == "" {
		d.path = strings.TrimSuffix(c.output, path.Ext(c.output)) + ".d"
	}
	d.path = absolute(cwd, d.path)
	if d.target = strings.Join(c.targets, " "); d.target == "" {
		d.target = depfile.Escape(c.output)
	}
	return d
}

// finish gives the caller the list as it was asked for, and keeps one.
func (d depFile) finish() error {
	text, err := os.ReadFile(d.path)
	if err != nil {
		return err
	}
	if d.place != "" {
		text = bytes.ReplaceAll(text, []byte(d.place), []byte(d.work))
		if err := os.WriteFile(d.path, text, 0o666); err != nil {
			return err
		}
	}
	rest, ok := strings.CutPrefix(strings.TrimLeft(string(text), " \n"), DepTarget)
	if !ok || !strings.HasPrefix(strings.TrimLeft(rest, " "), ":") {
		return fmt.Errorf("%s does not begin with its target", d.path)
	}
	if d.target == "" && len(d.device) == 0 {
		return nil
	}
	if err := os.WriteFile(d.kept, slices.Concat(text, d.device), 0o666); err != nil {
		return err
	}
	if d.target == "" {
		return nil
	}
	// A rename, so that a killed call leaves no half list.
	temp := d.path + ".kiln"
	if err := os.WriteFile(temp, []byte(d.target+rest), 0o666); err != nil {
		return err
	}
	return os.Rename(temp, d.path)
}
