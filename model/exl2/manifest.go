package exl2

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kiln-build/kiln/model/tensor"
)

const manifestSchema = "kiln-exl2-manifest/1"

// Manifest records what a compiled model consists of and what it was made from. It names no path of
// the machine that made it.
type Manifest struct {
	Schema       string           `json:"schema"`
	Mode         Mode             `json:"mode"`
	Architecture string           `json:"architecture"`
	Files        []ManifestFile   `json:"files"`
	Tensors      []ManifestTensor `json:"tensors"`
	Inputs       []ManifestInput  `json:"inputs"`
	NonFinite    []NonFinite      `json:"non_finite,omitempty"`
}

// ManifestFile is a file of the model; SHA256 is empty if hashing was off.
type ManifestFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
}

// ManifestTensor is a tensor of the model; SHA256 is of its data.
type ManifestTensor struct {
	Name   string       `json:"name"`
	File   string       `json:"file"`
	DType  tensor.DType `json:"dtype"`
	Shape  []int64      `json:"shape"`
	Offset int64        `json:"offset"`
	Size   int64        `json:"size"`
	SHA256 string       `json:"sha256,omitempty"`
}

// ManifestInput identifies a file the model was made from.
type ManifestInput struct {
	Name         string    `json:"name"`
	Size         int64     `json:"size"`
	ModTime      time.Time `json:"mod_time"`
	HeaderSHA256 string    `json:"header_sha256,omitempty"`
}

// NonFinite counts values of a float tensor that have no finite half-precision form.
type NonFinite struct {
	Tensor   string `json:"tensor"`
	Overflow int64  `json:"overflow,omitempty"` // finite in the source, infinite in the output
	NaN      int64  `json:"nan,omitempty"`
}

// String says which tensor lost values, and how.
func (n NonFinite) String() string { return n.Tensor + ": " + n.loss() }

func (n NonFinite) loss() string {
	var parts []string
	if n.Overflow > 0 {
		parts = append(parts, fmt.Sprintf("%d values are too large for half precision and become infinite", n.Overflow))
	}
	if n.NaN > 0 {
		parts = append(parts, fmt.Sprintf("%d values are not numbers (NaN)", n.NaN))
	}
	return strings.Join(parts, ", ")
}

func newManifest(p *Plan, shards []*shardRecord, files map[string]string) *Manifest {
	m := &Manifest{Schema: manifestSchema, Mode: p.Mode, Architecture: p.Architecture}
	for i, s := range p.Shards {
		rec := shards[i]
		m.Files = append(m.Files, ManifestFile{Name: s.Name, Size: s.Size, SHA256: rec.SHA256})
		for j, t := range s.Tensors {
			mt := ManifestTensor{Name: t.Name, File: s.Name, DType: t.DType, Shape: t.Shape, Offset: t.Offset, Size: t.Size}
			if len(rec.Tensors) > 0 {
				mt.SHA256 = rec.Tensors[j]
			}
			m.Tensors = append(m.Tensors, mt)
		}
		m.NonFinite = append(m.NonFinite, rec.Values...)
	}
	for _, f := range p.Files {
		if f.unlisted {
			continue
		}
		m.Files = append(m.Files, ManifestFile{Name: f.Name, Size: f.Size, SHA256: files[f.Name]})
	}
	if p.manifest != nil { // other shards do not make it another model
		m.Mode, m.Architecture, m.Inputs, m.NonFinite = p.manifest.Mode, p.manifest.Architecture, p.manifest.Inputs, p.manifest.NonFinite
		return m
	}
	for _, in := range p.Inputs {
		m.Inputs = append(m.Inputs, ManifestInput{Name: in.Name, Size: in.Size, ModTime: in.ModTime.UTC(), HeaderSHA256: in.HeaderSHA256})
	}
	return m
}

func (m *Manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(m)
	return b.Bytes(), err
}

// ReadManifest reads a manifest file.
func ReadManifest(path string) (*Manifest, error) {
	m, _, err := readManifest(path, InnerLinks)
	return m, err
}

// readManifest returns the bytes too, which a signature is about.
func readManifest(path string, links Links) (*Manifest, []byte, error) {
	data, err := links.readSmall(path, maxManifestBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("read manifest %s: %w", path, err)
	}
	m, err := ParseManifest(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read manifest %s: %w", path, err)
	}
	return m, data, nil
}

// ParseManifest reads the text of a manifest.
func ParseManifest(data []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if m.Schema != manifestSchema {
		return nil, fmt.Errorf("schema %q, want %q", m.Schema, manifestSchema)
	}
	return &m, nil
}
