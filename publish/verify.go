package publish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/wheel"
)

// Verdict is what is known of one wheel after [Verify].
type Verdict struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Provenance is where the statement or record was found; empty if nowhere.
	Provenance string `json:"provenance,omitempty"`
	// Signer is the id of the trusted key that signed it, SignerName its name for people, and
	// Signed whether there is a signature at all.
	Signer     string `json:"signer,omitempty"`
	SignerName string `json:"signer_name,omitempty"`
	Signed     bool   `json:"signed"`
	SBOM       string `json:"sbom,omitempty"`
	Row        string `json:"row,omitempty"`
	Source     string `json:"source,omitempty"`
	Test       string `json:"test,omitempty"`
	// Problems are reasons not to trust the file.
	Problems []string `json:"problems"`
	// Notes say what was not checked, and why.
	Notes []string `json:"notes,omitempty"`
}

// OK reports whether nothing speaks against the file.
func (v *Verdict) OK() bool { return len(v.Problems) == 0 }

func (v *Verdict) bad(format string, args ...any) {
	v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
}

// VerifyOptions are options of [Verify].
type VerifyOptions struct {
	// Statement is the path of the statement; by default it is beside the wheel, and so
	// is the folder of records.
	Statement string
	// Trust has the keys of which one must have signed. Nil means that signatures are not checked.
	Trust *sign.Trust
}

// Verify compares a wheel with its own RECORD, its provenance, and the papers that the provenance
// names. The error is about files that cannot be read; what is wrong with the wheel is in the
// verdict.
func Verify(ctx context.Context, path string, opts VerifyOptions) (*Verdict, error) {
	v := &Verdict{File: filepath.Base(path), Problems: []string{}}
	var err error
	if v.SHA256, v.Size, err = fsx.SHA256(path); err != nil {
		return nil, err
	}
	inside, found, err := checkWheel(ctx, path)
	if err != nil {
		v.bad("the wheel cannot be read: %v", err)
	}
	v.Problems = append(v.Problems, found...)
	name := cmp.Or(opts.Statement, path+index.ProvenanceSuffix)
	text, err := fsx.ReadFile(name, maxSmall)
	var s *Statement
	switch {
	case err == nil:
		v.Provenance = name
		s = v.statement(text, opts.Trust)
	case !errors.Is(err, fs.ErrNotExist) || opts.Statement != "":
		return nil, err
	case opts.Trust != nil:
		v.bad("there is no %s whose signature could be checked", filepath.Base(name))
	default:
		v.record(filepath.Dir(path))
	}
	if err := v.papers(path, filepath.Dir(name), s, inside); err != nil {
		return nil, err
	}
	return v, nil
}

// checkWheel compares a wheel with its own RECORD and returns its METADATA.
func checkWheel(ctx context.Context, path string) (metadata []byte, problems []string, err error) {
	w, err := wheel.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	list, err := w.Check(ctx, wheel.CheckOptions{})
	for _, p := range list {
		problems = append(problems, p.String())
	}
	if err == nil {
		metadata, err = readMember(w, "METADATA")
	}
	return metadata, problems, err
}

func (v *Verdict) statement(text []byte, trust *sign.Trust) *Statement {
	_, envelope, err := sign.Open(text)
	v.Signed = err == nil && envelope != nil && len(envelope.Signatures) > 0
	s, key, err := ParseStatement(text, trust)
	if err != nil {
		v.bad("the provenance: %v", err)
		return nil
	}
	if key != nil {
		v.Signer, v.SignerName = key.ID, key.Name
	}
	switch own := sign.Find(s.Subject, v.File); {
	case own == nil:
		v.bad("the provenance is about %s", subjectNames(s.Subject))
		return nil
	case own.Digest["sha256"] != v.SHA256:
		v.bad("the provenance is about other bytes: sha256 %s, the file has %s", own.Digest["sha256"], v.SHA256)
	}
	row, _ := s.Predicate.BuildDefinition.ExternalParameters["row"].(map[string]any)
	v.Row, _ = row["id"].(string)
	for _, d := range s.Predicate.BuildDefinition.ResolvedDependencies {
		if d.Name == "source" {
			v.Source = secret.Clean(d.URI)
			for _, kind := range []string{"gitCommit", "sha256"} {
				if d.Digest[kind] != "" {
					v.Source += " " + kind + ":" + d.Digest[kind]
				}
			}
		}
	}
	for _, b := range s.Predicate.RunDetails.Byproducts {
		var test struct{ Result string }
		if b.Name == "test" && json.Unmarshal(b.Content, &test) == nil {
			v.Test = test.Result
		}
	}
	return s
}

func subjectNames(list []sign.Subject) string {
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return cmp.Or(strings.Join(names, ", "), "nothing")
}

// paperNames are what the papers are called in messages.
var paperNames = []struct{ suffix, what string }{{index.MetadataSuffix, "the metadata"}, {index.SBOMSuffix, "the bill of materials"}}

// papers compares the small files that go with a wheel with the statement, if there is one, and
// with the wheel. They are beside the wheel, else in the folder of the statement.
func (v *Verdict) papers(path, folder string, s *Statement, inside []byte) error {
	var uncovered []string
	for _, p := range paperNames {
		file := v.File + p.suffix
		place := path + p.suffix
		text, err := fsx.ReadFile(place, maxSmall)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != folder {
			place = filepath.Join(folder, file)
			text, err = fsx.ReadFile(place, maxSmall)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		there := err == nil
		var signed *sign.Subject
		if s != nil {
			signed = sign.Find(s.Subject, file)
		}
		switch {
		case signed != nil && !there:
			v.bad("%s is missing: the provenance says that %s was published; fetch it from where the wheel is from", p.what, file)
			continue
		case signed != nil && dataFile(file, text).SHA256 != signed.Digest["sha256"]:
			v.bad("%s was changed: %s has the sha256 %s, the provenance says %s", p.what, file, dataFile(file, text).SHA256, signed.Digest["sha256"])
			continue
		case signed == nil && there && s != nil:
			uncovered = append(uncovered, file)
		}
		if !there {
			continue
		}
		switch p.suffix {
		case index.MetadataSuffix:
			if inside != nil && !bytes.Equal(text, inside) {
				v.bad("%s is not the one in the wheel: %s differs from its METADATA", p.what, file)
			}
		case index.SBOMSuffix:
			v.SBOM = place
			var b sbom
			if err := json.Unmarshal(text, &b); err != nil || b.Format != "CycloneDX" {
				v.bad("the bill of materials cannot be read")
			} else if h := b.Metadata.Component.Hashes; len(h) != 1 || h[0].Content != v.SHA256 {
				v.bad("the bill of materials is that of another file")
			}
		}
	}
	if len(uncovered) > 0 {
		v.Notes = append(v.Notes, "the provenance is of an early version of kiln and is about the wheel alone: whether "+strings.Join(uncovered, " and ")+" was changed is not known")
	}
	return nil
}

// record looks for the record of a build that made the file.
func (v *Verdict) record(dist string) {
	for r, err := range record.All(dist) {
		if err != nil {
			continue
		}
		for _, f := range r.Files {
			if f.Name != v.File {
				continue
			}
			v.Provenance, v.Row, v.Test = record.Path(dist, r.Recipe.Row.ID), r.Recipe.Row.ID, r.Test.Result
			v.Source = strings.TrimSpace(secret.Clean(r.Recipe.Source.Location) + " " + r.Recipe.Source.Digest)
			if f.SHA256 != v.SHA256 {
				v.bad("the record is about other bytes: sha256 %s, the file has %s", f.SHA256, v.SHA256)
			}
			return
		}
	}
	v.bad("there is no provenance beside the file and no record of its build")
}
