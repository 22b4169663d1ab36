package publish

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// The types of what is said about a wheel: in-toto Statement v1 with SLSA provenance v1, in a
// DSSE v1 envelope if it is signed.
const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	payloadType    = "application/vnd.in-toto+json"
	buildType      = "https://github.com/kiln-build/kiln/row/v1"
	builderID      = "https://github.com/kiln-build/kiln"
)

// StatementOptions are options of the statements about a wheel.
type StatementOptions struct {
	// Version is that of kiln.
	Version string
	// Builder is the address of who built, such as that of a CI run. Default builderID.
	Builder string
	// Key signs the provenance; nil leaves it unsigned.
	Key ed25519.PrivateKey
}

// Statement is an in-toto statement: what is said of files that are known by their hashes.
type Statement struct {
	Type          string     `json:"_type"`
	Subject       []Subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     Provenance `json:"predicate"`
}

// Subject is a file that a statement is about.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
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

// Envelope is a DSSE envelope: a statement with its signatures.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an [Envelope].
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"`
}

// NewStatement makes the provenance of a file of a record: one line of JSON, in an envelope if
// there is a key. Equal records give equal bytes.
func NewStatement(r *record.Record, file record.File, opts *StatementOptions) ([]byte, error) {
	s := Statement{
		Type: statementType, PredicateType: provenanceType,
		Subject: []Subject{{Name: file.Name, Digest: map[string]string{"sha256": file.SHA256}}},
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
	if r.Audit != nil {
		report, err := json.Marshal(r.Audit)
		if err != nil {
			return nil, err
		}
		run.Byproducts = append(run.Byproducts, Byproduct{"audit", "application/json", report})
	}
	test, err := json.Marshal(map[string]string{"result": r.Test.Result, "why": r.Test.Why})
	if err != nil {
		return nil, err
	}
	run.Byproducts = append(run.Byproducts, Byproduct{"test", "application/json", test})
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if opts.Key != nil {
		if text, err = sign(text, opts.Key); err != nil {
			return nil, err
		}
	}
	return append(text, '\n'), nil
}

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

// preAuth is what DSSE signs.
func preAuth(kind string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload)
}

func sign(payload []byte, key ed25519.PrivateKey) ([]byte, error) {
	return json.Marshal(Envelope{
		PayloadType: payloadType, Payload: payload,
		Signatures: []Signature{{KeyID: KeyID(key.Public().(ed25519.PublicKey)), Sig: ed25519.Sign(key, preAuth(payloadType, payload))}},
	})
}

// KeyID names a public key: the first 16 hexadecimal digits of its hash.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// ReadPrivateKey reads an Ed25519 key in PEM, PKCS #8, as `openssl genpkey -algorithm ed25519`
// makes it.
func ReadPrivateKey(path string) (ed25519.PrivateKey, error) {
	block, err := readPEM(path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	if k, ok := key.(ed25519.PrivateKey); ok {
		return k, nil
	}
	return nil, fmt.Errorf("read key %s: it is no Ed25519 key", path)
}

// ReadPublicKey reads the public half, as `openssl pkey -pubout` makes it.
func ReadPublicKey(path string) (ed25519.PublicKey, error) {
	block, err := readPEM(path, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKIXPublicKey(block)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	if k, ok := key.(ed25519.PublicKey); ok {
		return k, nil
	}
	return nil, fmt.Errorf("read key %s: it is no Ed25519 key", path)
}

func readPEM(path, kind string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("read key %s: it has no block %q", path, kind)
	}
	return block.Bytes, nil
}

// ParseStatement reads a statement, bare or in an envelope, and returns who signed it.
// With keys, one of them must have.
func ParseStatement(text []byte, keys ...ed25519.PublicKey) (*Statement, string, error) {
	signer := ""
	var e Envelope
	if err := json.Unmarshal(text, &e); err == nil && e.PayloadType != "" {
		if e.PayloadType != payloadType {
			return nil, "", fmt.Errorf("the envelope has a payload of type %q, want %q", e.PayloadType, payloadType)
		}
		message := preAuth(e.PayloadType, e.Payload)
		for _, k := range keys {
			if slices.ContainsFunc(e.Signatures, func(s Signature) bool { return ed25519.Verify(k, message, s.Sig) }) {
				signer = KeyID(k)
			}
		}
		if signer == "" && len(keys) > 0 {
			return nil, "", ErrSignature
		}
		text = e.Payload
	} else if len(keys) > 0 {
		return nil, "", fmt.Errorf("%w: it is not signed", ErrSignature)
	}
	var s Statement
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, "", err
	}
	if s.Type != statementType || s.PredicateType != provenanceType {
		return nil, "", fmt.Errorf("type %q about %q, want %q about %q", s.Type, s.PredicateType, statementType, provenanceType)
	}
	return &s, signer, nil
}

// ErrSignature is the error for a statement that none of the given keys signed.
var ErrSignature = errors.New("not signed by the given key")

// sbom is a CycloneDX 1.6 document, as far as it is used.
type sbom struct {
	Format       string `json:"bomFormat"`
	SpecVersion  string `json:"specVersion"`
	SerialNumber string `json:"serialNumber"`
	Version      int    `json:"version"`
	Metadata     struct {
		Timestamp time.Time     `json:"timestamp"`
		Tools     sbomTools     `json:"tools"`
		Component sbomComponent `json:"component"`
	} `json:"metadata"`
	Components   []sbomComponent  `json:"components"`
	Dependencies []sbomDependency `json:"dependencies"`
}

type sbomTools struct {
	Components []sbomComponent `json:"components"`
}

type sbomComponent struct {
	Type    string     `json:"type"`
	Ref     string     `json:"bom-ref,omitempty"`
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	Scope   string     `json:"scope,omitempty"`
	Hashes  []sbomHash `json:"hashes,omitempty"`
	PURL    string     `json:"purl,omitempty"`
}

type sbomHash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type sbomDependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

// NewSBOM makes the bill of materials of a wheel, in CycloneDX 1.6: what it needs at run time, in
// the versions that it was tested with, what only the build needed (scope "excluded"), and its
// native modules.
func NewSBOM(r *record.Record, file record.File, opts *StatementOptions) ([]byte, error) {
	name, err := wheel.ParseFilename(file.Name)
	if err != nil {
		return nil, err
	}
	var b sbom
	b.Format, b.SpecVersion, b.Version = "CycloneDX", "1.6", 1
	b.SerialNumber = "urn:uuid:" + uuidOf(file.SHA256)
	b.Metadata.Timestamp = r.Finished
	b.Metadata.Tools.Components = []sbomComponent{{Type: "application", Name: "kiln", Version: opts.Version}}
	self := packageURL(name.Name, name.Version.String())
	b.Metadata.Component = sbomComponent{
		Type: "library", Ref: self, Name: name.Name, Version: name.Version.String(), PURL: self, Hashes: []sbomHash{{"SHA-256", file.SHA256}},
	}
	seen := map[string]bool{self: true}
	required := []string{}
	b.Components = []sbomComponent{}
	for _, p := range r.Test.Installed {
		if c := packageComponent(p, "required"); !seen[c.Ref] && wheel.NormalizeName(p.Name) != name.Name {
			seen[c.Ref] = true
			required = append(required, c.Ref)
			b.Components = append(b.Components, c)
		}
	}
	for _, p := range r.Installed {
		if c := packageComponent(p, "excluded"); !seen[c.Ref] {
			seen[c.Ref] = true
			b.Components = append(b.Components, c)
		}
	}
	for _, m := range r.NativeModules {
		b.Components = append(b.Components, sbomComponent{Type: "file", Ref: "file:" + m, Name: m})
	}
	b.Dependencies = []sbomDependency{{Ref: self, DependsOn: required}}
	text, err := json.MarshalIndent(b, "", " ")
	return append(text, '\n'), err
}

func packageComponent(p record.Installed, scope string) sbomComponent {
	purl := packageURL(p.Name, p.Version)
	c := sbomComponent{Type: "library", Ref: purl, Name: wheel.NormalizeName(p.Name), Version: p.Version, Scope: scope, PURL: purl}
	if p.SHA256 != "" {
		c.Hashes = []sbomHash{{"SHA-256", p.SHA256}}
	}
	return c
}

// uuidOf makes a UUID (version 8, RFC 9562) from a hash, so that equal files have equal documents.
func uuidOf(sum string) string {
	b, err := hex.DecodeString(sum)
	if err != nil || len(b) < 16 {
		b = make([]byte, 16)
	}
	b = slices.Clone(b[:16])
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// Verdict is what is known of one wheel after [Verify].
type Verdict struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Provenance is where the statement or record was found; empty if nowhere.
	Provenance string `json:"provenance,omitempty"`
	// Signer is the id of the key that signed it, and Signed whether there is a signature.
	Signer string `json:"signer,omitempty"`
	Signed bool   `json:"signed"`
	SBOM   string `json:"sbom,omitempty"`
	Row    string `json:"row,omitempty"`
	Source string `json:"source,omitempty"`
	Test   string `json:"test,omitempty"`
	// Problems are reasons not to trust the file.
	Problems []string `json:"problems"`
}

// OK reports whether nothing speaks against the file.
func (v *Verdict) OK() bool { return len(v.Problems) == 0 }

// VerifyOptions are options of [Verify].
type VerifyOptions struct {
	// Statement is the path of the statement; by default it is beside the wheel, and so
	// is the folder of records.
	Statement string
	// Keys are those of which one must have signed. Without any, signatures are not checked.
	Keys []ed25519.PublicKey
}

// Verify compares a wheel with its provenance, its bill of materials and its own RECORD. The
// error is about files that cannot be read; what is wrong with the wheel is in the verdict.
func Verify(ctx context.Context, path string, opts VerifyOptions) (*Verdict, error) {
	v := &Verdict{File: filepath.Base(path), Problems: []string{}}
	var err error
	if v.SHA256, v.Size, err = fsx.SHA256(path); err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) { v.Problems = append(v.Problems, fmt.Sprintf(format, args...)) }
	found, err := checkWheel(ctx, path)
	if err != nil {
		bad("the wheel cannot be read: %v", err)
	}
	v.Problems = append(v.Problems, found...)
	name := cmp.Or(opts.Statement, path+provenanceSuffix)
	text, err := os.ReadFile(name)
	switch {
	case err == nil:
		v.Provenance = name
		v.statement(text, opts.Keys, bad)
	case !errors.Is(err, fs.ErrNotExist) || opts.Statement != "":
		return nil, err
	case len(opts.Keys) > 0:
		bad("there is no %s whose signature could be checked", filepath.Base(name))
	default:
		v.record(filepath.Dir(path), bad)
	}
	if text, err := os.ReadFile(path + sbomSuffix); err == nil {
		v.SBOM = path + sbomSuffix
		var b sbom
		if err := json.Unmarshal(text, &b); err != nil || b.Format != "CycloneDX" {
			bad("the bill of materials cannot be read")
		} else if h := b.Metadata.Component.Hashes; len(h) != 1 || h[0].Content != v.SHA256 {
			bad("the bill of materials is that of another file")
		}
	}
	return v, nil
}

// checkWheel compares a wheel with its own RECORD.
func checkWheel(ctx context.Context, path string) (out []string, err error) {
	w, err := wheel.Open(path)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	problems, err := w.Check(ctx, wheel.CheckOptions{})
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out, err
}

func (v *Verdict) statement(text []byte, keys []ed25519.PublicKey, bad func(string, ...any)) {
	var e Envelope
	v.Signed = json.Unmarshal(text, &e) == nil && len(e.Signatures) > 0
	s, signer, err := ParseStatement(text, keys...)
	if err != nil {
		bad("the provenance: %v", err)
		return
	}
	v.Signer = signer
	i := slices.IndexFunc(s.Subject, func(s Subject) bool { return s.Name == v.File })
	switch {
	case i < 0:
		bad("the provenance is about %s", subjectNames(s.Subject))
	case s.Subject[i].Digest["sha256"] != v.SHA256:
		bad("the provenance is about other bytes: sha256 %s, the file has %s", s.Subject[i].Digest["sha256"], v.SHA256)
	}
	row, _ := s.Predicate.BuildDefinition.ExternalParameters["row"].(map[string]any)
	v.Row, _ = row["id"].(string)
	for _, d := range s.Predicate.BuildDefinition.ResolvedDependencies {
		if d.Name == "source" {
			v.Source = d.URI
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
}

func subjectNames(list []Subject) string {
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return cmp.Or(strings.Join(names, ", "), "nothing")
}

// record looks for the record of a build that made the file.
func (v *Verdict) record(dist string, bad func(string, ...any)) {
	for r, err := range record.All(dist) {
		if err != nil {
			continue
		}
		for _, f := range r.Files {
			if f.Name != v.File {
				continue
			}
			v.Provenance, v.Row, v.Test = record.Path(dist, r.Recipe.Row.ID), r.Recipe.Row.ID, r.Test.Result
			v.Source = strings.TrimSpace(r.Recipe.Source.Location + " " + r.Recipe.Source.Digest)
			if f.SHA256 != v.SHA256 {
				bad("the record is about other bytes: sha256 %s, the file has %s", f.SHA256, v.SHA256)
			}
			return
		}
	}
	bad("there is no provenance beside the file and no record of its build")
}
