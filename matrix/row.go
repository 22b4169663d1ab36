package matrix

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/wheel"
)

// Row is one fully fixed build. It is a comparable value without paths: two plans
// made from the same inputs have equal rows.
type Row struct {
	// ID names the row for people and in every file that kiln keeps, for example
	// exllamav2-0.3.2-cu128-torch2.9.0-cp313-linux_x86_64. It depends on the row
	// alone, never on the other rows of a plan.
	ID string
	// Digest is a hash over everything that affects the built files. It changes
	// when a setting such as a variable does, while the ID stays.
	Digest string

	Package string // normalised name (PEP 503)
	Version string // normal form (PEP 440)
	Kind    string // "wheel" or "sdist"
	OS      string // as written: ubuntu-22.04
	// Platform is the wheel platform tag that the OS stands for: linux_x86_64.
	Platform string
	Python   string // 3.13, or 3.13t
	CUDA     string // 12.8.1, or "" without CUDA
	ROCm     string // 6.4, or "" without ROCm
	Torch    string // 2.9.0, or "" if the row does not fix it
	Arch     string // GPU architectures as written, or ""
	Axes     Axes   // values of custom axes
	BuildTag string // as written, with its plus sign: +cu128-torch2.9.0
	WheelTag string // python and abi tag: cp313-cp313; NoWheel for an sdist alone
	// TorchStable and ABI3 are the first torch and Python that the wheel is for, if it is for all
	// later ones too: 2.10 and 3.10. Torch and Python are what it is built with.
	TorchStable string
	ABI3        string
}

// Axes holds the values of custom axes as "name=value" pairs, sorted by name and
// joined with commas, so that it can be compared.
type Axes string

// Get returns the value of one axis, or "".
func (a Axes) Get(name string) string {
	for pair := range strings.SplitSeq(string(a), ",") {
		if k, v, ok := strings.Cut(pair, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// Map returns the axes as a new map.
func (a Axes) Map() map[string]string {
	m := map[string]string{}
	for pair := range strings.SplitSeq(string(a), ",") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			m[k] = v
		}
	}
	return m
}

// Kinds of rows.
const (
	KindWheel = "wheel"
	KindSdist = "sdist"
)

// NoWheel is the wheel tag of an sdist row that makes no wheel.
const NoWheel = "none"

// Toolkit returns "cuda" or "rocm" with the version, or "none" and "".
func (r *Row) Toolkit() (name, version string) {
	switch {
	case r.CUDA != "":
		return "cuda", r.CUDA
	case r.ROCm != "":
		return "rocm", r.ROCm
	}
	return "none", ""
}

// Axis returns the value of an axis by its name in selection expressions.
func (r *Row) Axis(name string) string {
	switch name {
	case "id":
		return r.ID
	case "package":
		return r.Package
	case "version":
		return r.Version
	case "kind":
		return r.Kind
	case "os":
		return r.OS
	case "platform":
		return r.Platform
	case "python":
		return r.Python
	case "toolkit":
		t, _ := r.Toolkit()
		return t
	case "cuda":
		return r.CUDA
	case "rocm":
		return r.ROCm
	case "torch":
		return r.Torch
	case "arch":
		return r.Arch
	case "tag":
		return strings.TrimPrefix(r.BuildTag, "+")
	}
	return r.Axes.Get(name)
}

// Files returns the names of the files that the row must produce: one wheel, or for
// an sdist row the source distribution and the pure wheel made from it. See Made for what is known
// only after the build.
func (r *Row) Files() []string {
	stem := wheel.FileName(r.Package) + "-" + r.Version
	if r.Kind == KindSdist && r.WheelTag == NoWheel {
		return []string{stem + ".tar.gz"}
	}
	if r.Kind == KindSdist {
		return []string{stem + ".tar.gz", stem + "-py3-none-any.whl"}
	}
	return []string{stem + normalLocal(r.BuildTag) + "-" + r.WheelTag + "-" + r.Platform + ".whl"}
}

// Made reports whether a file is the one that Files calls want, as far as that can be known before
// the build: a pure wheel may be for Python 2 too, and a repaired one has the platform that was
// proved.
func (r *Row) Made(want, got string, repaired bool) bool {
	if want == got {
		return true
	}
	w, err := wheel.ParseFilename(want)
	if err != nil {
		return false
	}
	g, err := wheel.ParseFilename(got)
	if err != nil || g.Name != w.Name || g.Version.String() != w.Version.String() || g.Build != w.Build || !slices.Equal(g.ABI, w.ABI) {
		return false
	}
	if r.Kind == KindSdist {
		return slices.Contains(g.Python, "py3") && slices.Equal(g.Platform, w.Platform)
	}
	_, arch, linux := strings.Cut(r.Platform, "linux_")
	return repaired && linux && slices.Equal(g.Python, w.Python) && !slices.ContainsFunc(g.Platform, func(tag string) bool {
		return !strings.Contains(tag, "linux") || !strings.HasSuffix(tag, "_"+arch)
	})
}

// CanBuild reports whether kiln builds wheels for a platform tag.
func CanBuild(platform string) bool {
	return platform == "any" || platform == "win_amd64" || strings.Contains(platform, "linux_")
}

// normalLocal turns a build tag into the local version that packaging tools write:
// lower case, dots for hyphens and underscores, numbers without leading zeros.
func normalLocal(tag string) string {
	if tag == "" {
		return ""
	}
	parts := strings.FieldsFunc(strings.ToLower(tag[1:]), func(c rune) bool { return c == '-' || c == '_' || c == '.' })
	for i, p := range parts {
		if strings.Trim(p, "0123456789") == "" {
			if parts[i] = strings.TrimLeft(p, "0"); parts[i] == "" {
				parts[i] = "0"
			}
		}
	}
	return "+" + strings.Join(parts, ".")
}

// TorchIndex returns the suffix of the torch index that serves the row: cu128,
// rocm6.4 or cpu.
func (r *Row) TorchIndex() string { return compat.TorchIndexSuffix(r.CUDA, r.ROCm) }

// makeID builds the row's name from the parts that decide its file names, so that
// two rows with one ID would also have one file.
func (r *Row) makeID() string {
	var b strings.Builder
	b.Grow(96)
	b.WriteString(r.Package)
	b.WriteByte('-')
	b.WriteString(r.Version)
	if r.Kind == KindSdist {
		b.WriteString("-sdist")
		return b.String()
	}
	variant := compat.ToolkitTag(r.CUDA, r.ROCm)
	if variant == "" {
		variant = "cpu"
	}
	toolkit := variant
	switch {
	case r.TorchStable != "":
		variant += "-stable" + r.TorchStable
	case r.Torch != "":
		variant += "-torch" + r.Torch
	}
	b.WriteByte('-')
	b.WriteString(variant)
	// A tag that says the same and more is not said twice.
	if tag := strings.TrimPrefix(r.BuildTag, "+"); r.TorchStable != "" && tag == toolkit {
	} else if tag := strings.TrimPrefix(r.BuildTag, "+"); tag != "" && tag != variant {
		b.WriteByte('-')
		b.WriteString(strings.TrimPrefix(tag, variant+"-"))
	}
	b.WriteByte('-')
	python, abi, _ := strings.Cut(r.WheelTag, "-")
	if own := pythonTag(r.Python); r.ABI3 != "" {
		b.WriteString(python)
		b.WriteByte('-')
	} else if own != abi {
		// The limited API: the interpreter still tells the rows apart.
		b.WriteString(own)
		b.WriteByte('-')
		b.WriteString(python)
		b.WriteByte('-')
	}
	b.WriteString(abi)
	b.WriteByte('-')
	b.WriteString(r.Platform)
	return b.String()
}

// pythonTag returns the ABI tag of an interpreter: cp313, or cp313t.
func pythonTag(python string) string { return "cp" + strings.ReplaceAll(python, ".", "") }

// wheelTag returns the python and abi tag of an interpreter: cp313-cp313t for 3.13t.
func wheelTag(python string) string {
	abi := pythonTag(python)
	return strings.TrimSuffix(abi, "t") + "-" + abi
}

// abi3Tag returns the tags of a wheel for a Python and all later ones.
func abi3Tag(python string) string { return pythonTag(python) + "-abi3" }

// rowJSON is the form of a row in `kiln plan --json`.
type rowJSON struct {
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`
	Package    string            `json:"package"`
	Version    string            `json:"version"`
	OS         string            `json:"os"`
	Platform   string            `json:"platform"`
	Python     string            `json:"python"`
	Toolkit    string            `json:"toolkit"`
	CUDA       string            `json:"cuda"`
	ROCm       string            `json:"rocm"`
	Torch      string            `json:"torch"`
	TorchIndex string            `json:"torch_index"`
	Arch       string            `json:"arch"`
	Axes       map[string]string `json:"axes"`
	BuildTag   string            `json:"build_tag"`
	WheelTag   string            `json:"wheel_tag"`
	Files      []string          `json:"files"`
	Digest     string            `json:"digest"`
	// Few rows have them.
	TorchStable string `json:"torch_stable,omitempty"`
	ABI3        string `json:"abi3,omitempty"`
}

// MarshalJSON writes the row with its derived values. Values that a row does not
// have are empty texts, never absent, but for those of the stable ABIs.
func (r Row) MarshalJSON() ([]byte, error) {
	toolkit, _ := r.Toolkit()
	return json.Marshal(rowJSON{
		ID: r.ID, Kind: r.Kind, Package: r.Package, Version: r.Version, OS: r.OS, Platform: r.Platform,
		Python: r.Python, Toolkit: toolkit, CUDA: r.CUDA, ROCm: r.ROCm, Torch: r.Torch, TorchIndex: r.TorchIndex(),
		Arch: r.Arch, Axes: r.Axes.Map(), BuildTag: r.BuildTag, WheelTag: r.WheelTag, Files: r.Files(), Digest: r.Digest,
		TorchStable: r.TorchStable, ABI3: r.ABI3,
	})
}

// UnmarshalJSON reads what MarshalJSON wrote. Derived values are not read.
func (r *Row) UnmarshalJSON(text []byte) error {
	var v rowJSON
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	*r = Row{
		ID: v.ID, Digest: v.Digest, Package: v.Package, Version: v.Version, Kind: v.Kind, OS: v.OS, Platform: v.Platform, Python: v.Python,
		CUDA: v.CUDA, ROCm: v.ROCm, Torch: v.Torch, Arch: v.Arch, BuildTag: v.BuildTag, WheelTag: v.WheelTag,
		TorchStable: v.TorchStable, ABI3: v.ABI3,
	}
	for i, name := range slices.Sorted(maps.Keys(v.Axes)) {
		if i > 0 {
			r.Axes += ","
		}
		r.Axes += Axes(name + "=" + v.Axes[name])
	}
	return nil
}
