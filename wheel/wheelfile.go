package wheel

import (
	"fmt"
	"slices"
	"strings"
)

// MaxInfoSize is the largest WHEEL file [ParseWheelInfo] reads, in bytes.
const MaxInfoSize = 64 << 10

// WheelInfo is the WHEEL file of a wheel: facts about the archive, as opposed to
// the distribution in it. The zero value describes version 1.0 of the format.
//
// See https://packaging.python.org/specifications/binary-distribution-format/.
type WheelInfo struct {
	// WheelVersion is the version of the archive format. Empty means "1.0".
	WheelVersion string

	// Generator names the program that made the archive. Programs that change an
	// archive may add themselves on a line of their own; the lines are joined by
	// ", ".
	Generator string

	// RootIsPurelib says that the root of the archive is installed into purelib,
	// not platlib.
	RootIsPurelib bool

	// Tags are the tags of the wheel, one by one, in the order of the file.
	Tags []Tag

	// Build is the build number, empty for most wheels.
	Build string

	doc *Metadata // what was parsed; nil for a value made by hand
}

// ParseWheelInfo reads a WHEEL file. It refuses a format version other than 1.x,
// because such an archive may have another layout. Root-Is-Purelib may be
// missing, which installers take for false. A compressed tag set is expanded;
// the standard wants one tag a line, older programs wrote sets.
func ParseWheelInfo(data []byte) (*WheelInfo, error) {
	if len(data) > MaxInfoSize {
		return nil, fmt.Errorf("parse WHEEL: %d bytes, limit %d", len(data), MaxInfoSize)
	}
	return parseWheelInfo(data)
}

func parseWheelInfo(data []byte) (*WheelInfo, error) {
	doc, err := parseFields("WHEEL", string(data))
	if err != nil {
		return nil, err
	}
	w := &WheelInfo{doc: doc}
	for _, name := range []string{"Wheel-Version", "Root-Is-Purelib", "Build"} {
		if n := len(doc.All(name)); n > 1 {
			return nil, fmt.Errorf("parse WHEEL: %s given %d times", name, n)
		}
	}
	w.WheelVersion = strings.TrimSpace(doc.Get("Wheel-Version"))
	if err := checkWheelVersion(w.WheelVersion); err != nil {
		return nil, fmt.Errorf("parse WHEEL: %w", err)
	}
	w.Generator = unfold(strings.Join(doc.All("Generator"), ", "))
	w.Build = strings.TrimSpace(doc.Get("Build"))
	switch pure := strings.TrimSpace(doc.Get("Root-Is-Purelib")); strings.ToLower(pure) {
	case "true":
		w.RootIsPurelib = true
	case "false", "":
	default:
		return nil, fmt.Errorf("parse WHEEL: Root-Is-Purelib is %q, not true or false", pure)
	}
	for _, value := range doc.All("Tag") {
		tags, err := ParseTag(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("parse WHEEL: %w", err)
		}
		if len(w.Tags)+len(tags) > maxInfoTags {
			return nil, fmt.Errorf("parse WHEEL: more than %d tags", maxInfoTags)
		}
		w.Tags = append(w.Tags, tags...)
	}
	return w, nil
}

// maxInfoTags bounds the product of compressed tag sets, as for file names.
const maxInfoTags = 1000

func checkWheelVersion(v string) error {
	major, minor, ok := strings.Cut(v, ".")
	if !ok || major != "1" || minor == "" || strings.Trim(minor, "0123456789") != "" {
		return fmt.Errorf("Wheel-Version is %q, not 1.x", v)
	}
	return nil
}

// Bytes returns the WHEEL file. Lines whose value did not change since
// [ParseWheelInfo], and lines this package does not know, are kept as they were.
func (w *WheelInfo) Bytes() ([]byte, error) {
	version := w.WheelVersion
	if version == "" {
		version = "1.0"
	}
	if err := checkWheelVersion(version); err != nil {
		return nil, fmt.Errorf("write WHEEL: %w", err)
	}
	doc, was := &Metadata{}, &WheelInfo{}
	if w.doc != nil {
		data := w.doc.Bytes()
		var err error
		if was, err = parseWheelInfo(data); err != nil {
			return nil, fmt.Errorf("write WHEEL: %w", err)
		}
		doc = w.doc.Clone()
	}
	var err error
	set := func(changed bool, name, value string) {
		if err != nil || !changed {
			return
		}
		if value == "" {
			doc.Remove(name)
			return
		}
		err = doc.Set(name, value)
	}
	set(version != was.WheelVersion, "Wheel-Version", version)
	set(w.Generator != was.Generator, "Generator", w.Generator)
	set(w.doc == nil || w.RootIsPurelib != was.RootIsPurelib, "Root-Is-Purelib", fmt.Sprint(w.RootIsPurelib))
	if !slices.Equal(w.Tags, was.Tags) {
		if len(w.Tags) == 0 {
			doc.Remove("Tag")
		}
		write := doc.Set // the first in place of the old ones, the others after it
		for _, tag := range w.Tags {
			if err == nil {
				err = write("Tag", tag.String())
			}
			write = doc.Add
		}
	}
	set(w.Build != was.Build, "Build", w.Build)
	if err != nil {
		return nil, fmt.Errorf("write WHEEL: %w", err)
	}
	if w.doc == nil {
		doc.body = "\n" // as wheel and setuptools end the file
	}
	out := doc.Bytes()
	if _, err := ParseWheelInfo(out); err != nil {
		return nil, fmt.Errorf("write WHEEL: %w", err)
	}
	return out, nil
}
