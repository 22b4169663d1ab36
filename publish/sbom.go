package publish

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/wheel"
)

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
	return append(clean(text), '\n'), err
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
