package publish

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/wheel"
)

// What is said about a wheel: an in-toto statement with SLSA provenance v1.
const (
	provenanceType = "https://slsa.dev/provenance/v1"
	buildType      = "https://github.com/kiln-build/kiln/row/v1"
	builderID      = "https://github.com/kiln-build/kiln"

	// signedOn is the internal parameter with the time of the signature. The schema of SLSA has no
	// place for one, and parsers of schemas refuse fields that are not in it.
	signedOn = "signedOn"
)

// StatementOptions are options of the statements about a wheel.
type StatementOptions struct {
	// Version is that of kiln.
	Version string
	// Builder is the address of who built, such as that of a CI run. Default builderID.
	Builder string
	// Key signs the provenance; nil leaves it unsigned.
	Key ed25519.PrivateKey
	// Signed is when it is signed, to the second.
	Signed time.Time
	// Proven are the rows with another torch that the wheel serves.
	Proven []record.Reuse
}

// Statement is an in-toto statement: what is said of files that are known by their hashes.
type Statement struct {
	Type          string         `json:"_type"`
	Subject       []sign.Subject `json:"subject"`
	PredicateType string         `json:"predicateType"`
	Predicate     Provenance     `json:"predicate"`
}

// Provenance is SLSA provenance v1.
type Provenance struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition says what was to be built, and from what.
type BuildDefinition struct {
	BuildType            string         `json:"buildType"`
	ExternalParameters   map[string]any `json:"externalParameters"`
	InternalParameters   map[string]any `json:"internalParameters"`
	ResolvedDependencies []Dependency   `json:"resolvedDependencies"`
}

// Dependency is one input, with its hash where there is one.
type Dependency struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// RunDetails says who built it, when, and what came of it.
type RunDetails struct {
	Builder struct {
		ID      string            `json:"id"`
		Version map[string]string `json:"version,omitempty"`
	} `json:"builder"`
	Metadata struct {
		InvocationID string    `json:"invocationId"`
		StartedOn    time.Time `json:"startedOn"`
		FinishedOn   time.Time `json:"finishedOn"`
	} `json:"metadata"`
	Byproducts []Byproduct `json:"byproducts,omitempty"`
}

// Byproduct is a verdict about the file, as base64 in JSON.
type Byproduct struct {
	Name      string `json:"name"`
	MediaType string `json:"mediaType"`
	Content   []byte `json:"content"`
}

// NewStatement makes the provenance of a file of a record: one line of JSON, in an envelope if
// there is a key. papers are the files that are published with it: they are subjects too, so that a
// signature covers them. Equal records give equal statements, but for the time of a signature.
func NewStatement(r *record.Record, file record.File, papers []LocalFile, opts *StatementOptions) ([]byte, error) {
	s := Statement{Type: sign.StatementType, PredicateType: provenanceType, Subject: []sign.Subject{sign.NewSubject(file.Name, file.SHA256)}}
	for _, f := range papers {
		s.Subject = append(s.Subject, sign.NewSubject(f.Name, f.SHA256))
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]any{"row": r.Recipe.Row, "description": r.Recipe.Settings.Description, "recipe": r.Recipe.Digest}
	d.InternalParameters = map[string]any{
		"sandbox": r.Recipe.Sandbox, "environment": r.Environment, "jobs": r.Jobs, "os": r.OS, "libc": r.Libc, "python": r.Python,
		"torch": r.Torch, "tools": r.Tools, "patches": r.Patches, "commands": r.Commands, "warnings": r.Warnings,
	}
	d.ResolvedDependencies = dependencies(r)
	run := &s.Predicate.RunDetails
	run.Builder.ID = cmp.Or(opts.Builder, builderID)
	run.Builder.Version = map[string]string{"kiln": cmp.Or(opts.Version, "unknown")}
	run.Metadata.InvocationID = r.Recipe.Row.ID + "#" + strconv.Itoa(r.Attempt)
	run.Metadata.StartedOn, run.Metadata.FinishedOn = r.Started, r.Finished
	if opts.Key != nil {
		d.InternalParameters[signedOn] = opts.Signed.UTC().Format(time.RFC3339)
	}
	if r.Audit != nil {
		report, err := json.Marshal(r.Audit)
		if err != nil {
			return nil, err
		}
		run.Byproducts = append(run.Byproducts, Byproduct{"audit", "application/json", clean(report)})
	}
	test, err := json.Marshal(map[string]string{"result": r.Test.Result, "why": r.Test.Why})
	if err != nil {
		return nil, err
	}
	run.Byproducts = append(run.Byproducts, Byproduct{"test", "application/json", clean(test)})
	if len(opts.Proven) > 0 {
		proven, err := json.Marshal(opts.Proven)
		if err != nil {
			return nil, err
		}
		run.Byproducts = append(run.Byproducts, Byproduct{"proven", "application/json", clean(proven)})
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	text = clean(text)
	if opts.Key != nil {
		if text, err = sign.Seal(text, opts.Key); err != nil {
			return nil, err
		}
	}
	return append(text, '\n'), nil
}

// clean takes the credentials of addresses out of what is to be published. A record has none; one
// that another program wrote may.
func clean(text []byte) []byte { return []byte(secret.Clean(string(text))) }

// dependencies are the inputs of a build: source, image, and every package that was installed.
func dependencies(r *record.Record) []Dependency {
	src := r.Recipe.Source
	d := Dependency{Name: "source", URI: src.Location, Digest: map[string]string{"sha256": src.Digest}}
	if src.Kind == "git" {
		d.URI, d.Digest = "git+"+src.Location, map[string]string{"gitCommit": cmp.Or(src.Commit, src.Digest)}
	}
	out := []Dependency{d}
	if r.Image != "" {
		image := Dependency{Name: "image", URI: "docker://" + r.Image}
		if _, digest, ok := strings.Cut(r.Image, "@sha256:"); ok {
			image.Digest = map[string]string{"sha256": digest}
		}
		out = append(out, image)
	}
	for _, m := range r.Merged {
		out = append(out, Dependency{Name: m.Row, URI: "file:" + m.Name, Digest: map[string]string{"sha256": m.SHA256}})
	}
	for _, p := range r.Installed {
		d := Dependency{Name: p.Name, URI: cmp.Or(p.URL, packageURL(p.Name, p.Version))}
		if p.SHA256 != "" {
			d.Digest = map[string]string{"sha256": p.SHA256}
		}
		out = append(out, d)
	}
	return out
}

// packageURL is the purl of a package of PyPI's kind.
func packageURL(name, version string) string {
	return "pkg:pypi/" + wheel.NormalizeName(name) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// ParseStatement reads a statement, bare or in an envelope. With trust, one of its keys must have
// signed it in its time, and is returned.
func ParseStatement(text []byte, trust *sign.Trust) (*Statement, *sign.Key, error) {
	payload, envelope, err := sign.Open(text)
	if err != nil {
		return nil, nil, err
	}
	var s Statement
	if err := json.Unmarshal(payload, &s); err != nil {
		return nil, nil, err
	}
	if s.Type != sign.StatementType || s.PredicateType != provenanceType {
		return nil, nil, fmt.Errorf("type %q about %q, want %q about %q", s.Type, s.PredicateType, sign.StatementType, provenanceType)
	}
	if trust == nil {
		return &s, nil, nil
	}
	at, err := s.signed()
	if err != nil {
		return nil, nil, err
	}
	key, err := trust.Verify(envelope, at)
	if err != nil {
		return nil, nil, err
	}
	return &s, key, nil
}

// signed is when the statement was signed, as far as it says: statements of early versions have the
// end of the build instead.
func (s *Statement) signed() (time.Time, error) {
	p := &s.Predicate
	text, there := p.BuildDefinition.InternalParameters[signedOn]
	if !there {
		return p.RunDetails.Metadata.FinishedOn, nil
	}
	word, _ := text.(string)
	t, err := time.Parse(time.RFC3339, word)
	if err != nil {
		return t, fmt.Errorf("%s %v is no time", signedOn, text)
	}
	return t, nil
}
