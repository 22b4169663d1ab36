package index

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/sign"
)

// MaxPaper is the size of a paper, in bytes, that an index takes.
const MaxPaper = 4 << 20

// AddPaper stores what was published with a hosted wheel, under the name that [CutPaper] reads. A
// paper never changes, but a statement without a signature gets one: that with a signature which is
// about the same files takes its place. An error about the paper is a [Problem], which wraps
// [ErrNotFound] if the wheel is not there, and [ErrExists] if another paper is.
func (s *Store) AddPaper(ctx context.Context, name string, data []byte) (Change, error) {
	change := Change{Filename: name, Action: "added", SHA256: sha256.Sum256(data)}
	filename, suffix, ok := CutPaper(name)
	if !ok || len(data) > MaxPaper {
		return change, Problem{name, fmt.Errorf("with %d bytes is no paper of a wheel", len(data))}
	}
	project, _, err := ParseName(filename)
	if err != nil {
		return change, Problem{name, err}
	}
	change.Project = project
	for {
		replaced := false
		err := s.update(ctx, func(u *update) error {
			p, err := u.project(project)
			if err != nil {
				return err
			}
			if p == nil || p.File(filename) == nil || p.File(filename).Base != "" {
				return Problem{name, fmt.Errorf("its wheel is %w; upload that first", ErrNotFound)}
			}
			if !p.AcceptsUploads() {
				return Problem{name, fmt.Errorf("%w: it is %s", ErrClosed, p.Status)}
			}
			f := p.File(filename)
			if f.Papers[suffix] == change.SHA256 {
				change.Action = "unchanged"
				u.forget(project)
				return nil
			}
			if replaced = !f.Papers[suffix].IsZero(); replaced && !s.addsSignature(f, suffix, data) {
				return Problem{name, fmt.Errorf("%w: published with sha256 %s, now %s", ErrExists, f.Papers[suffix], change.SHA256)}
			}
			papers := maps.Clone(f.Papers)
			if papers == nil {
				papers = map[string]Digest{}
			}
			papers[suffix] = change.SHA256
			f.Papers = papers
			if err := s.checkPaper(f, suffix, data); err != nil {
				return Problem{name, err}
			}
			if replaced {
				// A kill between the file and the catalog must not leave one that differs from what is
				// said of it. It is taken out of the catalog, then added as a new one.
				delete(f.Papers, suffix)
			} else {
				path := filepath.Join(s.dir, filepath.FromSlash(f.HostedPath())) + suffix
				if !exists(path) {
					u.placed = append(u.placed, path)
				}
				if err := s.touch(path); err != nil {
					return err
				}
				if err := fsx.WriteFile(path, data, 0o644); err != nil {
					return err
				}
			}
			u.set(p)
			return nil
		})
		if err != nil || !replaced {
			return change, err
		}
	}
}

func (s *Store) readPaper(f *File, suffix string) ([]byte, error) {
	r, err := s.OpenFile(f, suffix)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, MaxPaper))
}

// addsSignature reports whether a statement says the same as the one that is there, and only it is
// signed.
func (s *Store) addsSignature(f *File, suffix string, data []byte) bool {
	old, err := s.readPaper(f, suffix)
	if err != nil || suffix != ProvenanceSuffix {
		return false
	}
	was, signed, err := subjects(old)
	if err != nil || signed {
		return false
	}
	is, signed, err := subjects(data)
	return err == nil && signed && reflect.DeepEqual(was, is)
}

// subjects returns what a statement is about, and whether it is signed.
func subjects(text []byte) ([]sign.Subject, bool, error) {
	payload, envelope, err := sign.Open(text)
	if err != nil {
		return nil, false, err
	}
	var s struct {
		Type    string         `json:"_type"`
		Subject []sign.Subject `json:"subject"`
	}
	if err := json.Unmarshal(payload, &s); err != nil {
		return nil, false, err
	}
	if s.Type != sign.StatementType {
		return nil, false, fmt.Errorf("type %.60q, want %q", s.Type, sign.StatementType)
	}
	return s.Subject, envelope != nil, nil
}

// checkPaper checks a paper, and that the statement about the wheel, if there is one then, is about
// what the index has.
func (s *Store) checkPaper(f *File, suffix string, data []byte) error {
	statement := data
	if suffix == SBOMSuffix {
		var bom struct {
			Format string `json:"bomFormat"`
		}
		if err := json.Unmarshal(data, &bom); err != nil || bom.Format != "CycloneDX" {
			return errors.New("is no bill of materials in the format CycloneDX")
		}
		if f.Papers[ProvenanceSuffix].IsZero() {
			return nil
		}
		var err error
		if statement, err = s.readPaper(f, ProvenanceSuffix); err != nil {
			return err
		}
	}
	list, _, err := subjects(bytes.TrimSpace(statement))
	if err != nil {
		return fmt.Errorf("the statement cannot be read: %w", err)
	}
	if sign.Find(list, f.Filename) == nil {
		return fmt.Errorf("the statement is not about %s", f.Filename)
	}
	for _, suffix := range []string{"", MetadataSuffix, SBOMSuffix} {
		have := f.Paper(suffix)
		if said := sign.Find(list, f.Filename+suffix); said != nil && !have.IsZero() && said.Digest["sha256"] != have.String() {
			return fmt.Errorf("%s has the sha256 %s, the statement says %.64q", f.Filename+suffix, have, said.Digest["sha256"])
		}
	}
	return nil
}
