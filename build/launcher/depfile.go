package launcher

import (
	"errors"
	"os"
	"path"
	"slices"

	"github.com/kiln-build/kiln/internal/depfile"
)

// DepTarget stands for the name of the object in dependency lists while they are in the cache: the name is another one
// for each Python, and the list is part of the result.
const DepTarget = "kiln"

// depFile is the dependency list of one call.
type depFile struct {
	path   string // where the compiler writes it
	kept   string // a copy for the record
	target string // what the caller wants to read in it; "" if the caller wants no list
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
		d.path = trimSuffix(c.output, path.Ext(c.output)) + ".d"
	}
	d.path = absolute(cwd, d.path)
	if d.target = join(c.targets, " "); d.target == "" {
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
	begin := 0
	for begin < len(text) && (text[begin] == ' ' || text[begin] == '\n') {
		begin++
	}
	rest, ok := cutPrefix(string(text[begin:]), DepTarget)
	colon := 0
	for colon < len(rest) && rest[colon] == ' ' {
		colon++
	}
	if !ok || !hasPrefix(rest[colon:], ":") {
		return errors.New(d.path + " does not begin with its target")
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
	// Never half a list: what reads it does so when the call has ended, and a killed call is no call.
	temp := d.path + ".kiln"
	if err := os.WriteFile(temp, []byte(d.target+rest), 0o666); err != nil {
		return err
	}
	return os.Rename(temp, d.path)
}
