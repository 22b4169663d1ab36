package scaffold

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// row is one build that a workflow describes, in the words of packages.yml. It can be compared.
type row struct {
	kind, version, os, platform, python, cuda, rocm, torch, arch string
	custom                                                       string // as matrix.Axes
}

// names of what a key of a workflow's matrix can be.
const (
	roleOS      = "os"
	rolePython  = "python"
	roleCUDA    = "cuda" // or ROCm, or the word cpu
	roleROCm    = "rocm"
	roleTorch   = "torch"
	roleArch    = "arch"
	roleKind    = "kind"
	roleVersion = "version"
	roleToolkit = "toolkit" // the word cuda, rocm or cpu
	roleOther   = ""
)

// roleNames are the usual names of keys, without _, - and the word version.
var roleNames = map[string]string{
	"os": roleOS, "runson": roleOS, "runner": roleOS, "platform": roleOS, "operatingsystem": roleOS, "host": roleOS,
	"python": rolePython, "py": rolePython, "pyver": rolePython, "pythonver": rolePython, "cpython": rolePython, "pyversion": rolePython,
	"cuda": roleCUDA, "cudaver": roleCUDA, "cu": roleCUDA, "cudatoolkit": roleCUDA, "toolkitshort": roleCUDA, "toolkit": roleCUDA,
	"computeplatform": roleCUDA, "gpu": roleCUDA, "accelerator": roleCUDA, "device": roleCUDA, "desiredcuda": roleCUDA,
	"rocm": roleROCm, "rocmver": roleROCm, "hip": roleROCm,
	"torch": roleTorch, "pytorch": roleTorch, "torchver": roleTorch, "pt": roleTorch,
	"cudaarch": roleArch, "cudaarchs": roleArch, "archlist": roleArch, "archs": roleArch, "arch": roleArch, "torchcudaarchlist": roleArch,
	"cudaarchlist": roleArch, "rocmarch": roleArch, "pytorchrocmarch": roleArch, "amdgputargets": roleArch, "gfx": roleArch,
	"artname": roleKind, "artifact": roleKind, "kind": roleKind, "type": roleKind, "dist": roleKind, "buildtype": roleKind,
	"package": roleVersion, "pkg": roleVersion, "release": roleVersion, "": roleVersion,
	"toolkittype": roleToolkit, "gpuarchtype": roleToolkit,
}

// roleOf says what a key is by its name.
func roleOf(key string) string {
	if parent, child, ok := cutLast(key, "."); ok {
		// The key of a map in a list: torch.version is torch, torch.cuda is CUDA.
		switch strings.ToLower(child) {
		case "version", "ver", "value", "name", "label", "full":
			return roleOf(parent)
		}
		return roleOf(child)
	}
	name := strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
	if role, ok := roleNames[name]; ok {
		return role
	}
	short := strings.ReplaceAll(name, "version", "")
	if role, ok := roleNames[strings.TrimSuffix(short, "s")]; ok {
		return role
	}
	switch {
	case strings.Contains(name, "arch"):
		return roleArch
	case strings.Contains(name, "python"):
		return rolePython
	case strings.Contains(name, "rocm"):
		return roleROCm
	case strings.Contains(name, "cuda"):
		return roleCUDA
	case strings.Contains(name, "torch"):
		return roleTorch
	}
	return roleOther
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

var (
	pythonValue = regexp.MustCompile(`^(?:cpython|python|cp|py)?-?3\.?([0-9]{1,2})(?:\.[0-9x*]+)?(t?)$`)
	torchValue  = regexp.MustCompile(`^(?:pytorch|torch|pt|v|==)*-?([0-9]+\.[0-9][^+]*)(?:\+(.*))?$`)
	cudaValue   = regexp.MustCompile(`^(?:cuda|cu)?-?([0-9]{1,2}\.[0-9]+(?:\.[0-9]+)?)$`)
	shortValue  = regexp.MustCompile(`^(?:cuda|cu)?-?([0-9]{2})([0-9])$`)
	rocmValue   = regexp.MustCompile(`^(?:rocm|hip)?-?([0-9]\.[0-9]+(?:\.[0-9]+)?)$`)
)

// normal returns the value of a key in the words of packages.yml; ok is false if it cannot be one.
// For CUDA, a value may be of ROCm: it then begins with "rocm ".
func normal(role, value string) (out string, ok bool) {
	lower := strings.ToLower(value)
	switch role {
	case rolePython:
		if m := pythonValue.FindStringSubmatch(lower); m != nil {
			return "3." + m[1] + m[2], true
		}
	case roleTorch:
		if value == "" {
			return "", true
		}
		if m := torchValue.FindStringSubmatch(lower); m != nil {
			if v, err := wheel.ParseVersion(strings.TrimSuffix(m[1], ".*")); err == nil {
				return v.String(), true
			}
		}
	case roleCUDA:
		switch lower {
		case "", "cpu", "none", "false", "no", "off":
			return "", true
		}
		if m := shortValue.FindStringSubmatch(lower); m != nil {
			return m[1] + "." + m[2], true
		}
		if m := cudaValue.FindStringSubmatch(lower); m != nil {
			return m[1], true
		}
		if m := rocmValue.FindStringSubmatch(lower); m != nil && (strings.HasPrefix(lower, "rocm") || strings.HasPrefix(lower, "hip")) {
			return "rocm " + m[1], true
		}
	case roleROCm:
		if lower == "" || lower == "none" || lower == "cpu" {
			return "", true
		}
		if m := rocmValue.FindStringSubmatch(lower); m != nil {
			return m[1], true
		}
	case roleArch:
		if value == "" {
			return "", true
		}
		if strings.HasPrefix(value, "gfx") {
			_, err := compat.ParseGfxList(value)
			return value, err == nil
		}
		_, err := compat.ParseArchList(value)
		return value, err == nil && strings.Contains(value, ".")
	case roleKind:
		switch lower {
		case "wheel", "wheels", "bdist_wheel", "whl", "bdist":
			return matrix.KindWheel, true
		case "sdist", "source", "src":
			return matrix.KindSdist, true
		}
	case roleVersion:
		if v, err := wheel.ParseVersion(strings.TrimPrefix(value, "v")); err == nil && v.Local() == "" {
			return v.String(), true
		}
	case roleToolkit:
		switch lower {
		case "cuda", "rocm", "cpu":
			return lower, true
		case "hip":
			return "rocm", true
		case "", "none":
			return "cpu", true
		}
	case roleOS:
		return value, value != ""
	}
	return "", false
}

// byValue says what a part of a zipped text is.
func byValue(value string) string {
	lower := strings.ToLower(value)
	for _, system := range []string{"ubuntu", "windows", "macos", "linux", "debian", "alma", "rocky"} {
		if strings.HasPrefix(lower, system) {
			return roleOS
		}
	}
	switch {
	case strings.HasPrefix(lower, "torch"), strings.HasPrefix(lower, "pt"):
		return roleTorch
	case lower == "cpu", strings.HasPrefix(lower, "cu"), strings.HasPrefix(lower, "rocm"):
		return roleCUDA
	}
	if _, ok := normal(rolePython, value); ok && !shortValue.MatchString(lower) {
		return rolePython
	}
	if m := cudaValue.FindStringSubmatch(lower); m != nil {
		// CUDA is at 11 and above, torch and ROCm are below 10; ROCm needs its name.
		if major, _, _ := strings.Cut(m[1], "."); len(major) == 2 {
			return roleCUDA
		}
		return roleTorch
	}
	if _, ok := normal(roleTorch, value); ok {
		return roleTorch
	}
	return roleOther
}

// reader turns the combinations of a job into rows.
type reader struct {
	table   *compat.Table
	name    string // of the package, for its own version key
	found   []Note
	guessed []Note
	list    diag.List

	custom    []string          // custom axes in order
	variables map[string]string // environment variable → custom axis
}

// rows reads a job.
func (r *reader) rows(job *workflowJob) []row {
	r.found = append(r.found, job.notes...)
	combos := r.unzip(job)
	var other []string
	roles := map[string]string{}
	for _, key := range job.keys {
		role := r.role(job, key, combos)
		if role != roleOther {
			for earlier, taken := range roles {
				if taken == role {
					// A second key for the same thing, such as cuda_short beside cuda.
					r.found = append(r.found, Note{Pos: job.pos, Text: fmt.Sprintf("%s is read as the %s; %s is not", earlier, roleTitle(role), key)})
					role = roleOther
				}
			}
		}
		if role == roleOther {
			other = append(other, key)
			continue
		}
		roles[key] = role
		r.found = append(r.found, Note{Pos: firstPos(combos, key), Text: fmt.Sprintf("%s is the %s: %s", key, roleTitle(role), strings.Join(distinct(combos, key), ", "))})
	}
	out := make([]row, len(combos))
	for i, c := range combos {
		out[i] = r.row(job, c, roles)
	}
	r.customAxes(job, combos, other, out)
	return out
}

func roleTitle(role string) string {
	switch role {
	case roleOS:
		return "operating system"
	case rolePython:
		return "Python version"
	case roleCUDA:
		return "CUDA version"
	case roleROCm:
		return "ROCm version"
	case roleTorch:
		return "torch version"
	case roleArch:
		return "list of GPU architectures"
	case roleKind:
		return "kind of row"
	case roleVersion:
		return "version of the package"
	}
	return role
}

func firstPos(combos []combo, key string) diag.Pos {
	for _, c := range combos {
		if v, ok := c.cells[key]; ok {
			return v.pos
		}
	}
	return diag.Pos{}
}

// distinct lists the values of a key.
func distinct(combos []combo, key string) []string {
	var out []string
	seen := map[string]bool{}
	for _, c := range combos {
		if v := c.cells[key].text; !seen[v] {
			seen[v] = true
			out = append(out, cmp.Or(v, "none"))
		}
	}
	return out
}

// role decides what a key is: by its name, else by what gets its value. All its values must fit.
func (r *reader) role(job *workflowJob, key string, combos []combo) string {
	candidates := []string{roleOf(key), roleOf(job.uses[key])}
	if job.uses[key] == "" {
		candidates = candidates[:1]
	}
	for _, role := range candidates {
		if role == roleVersion && !r.isVersionKey(key) {
			continue
		}
		if role != roleOther && !slices.ContainsFunc(combos, func(c combo) bool {
			v, present := c.cells[key]
			_, ok := normal(role, v.text)
			return present && !ok
		}) {
			return role
		}
	}
	return roleOther
}

// isVersionKey reports whether a key has the version of the package: version, package-version,
// or the name of the package with the word version.
func (r *reader) isVersionKey(key string) bool {
	plain := strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(key))
	own := strings.NewReplacer("-", "").Replace(r.name)
	return slices.Contains([]string{"version", "packageversion", "pkgversion", "versions"}, plain) || own != "" && plain == own+"version"
}

// zipSeparators are tried in this order on texts that hold several values.
var zipSeparators = []string{" ", ",", ";", "|", "/", ":", "_", "-"}

// unzip splits keys whose texts hold several values, such as "3.12 12.8 2.9".
func (r *reader) unzip(job *workflowJob) []combo {
	combos := job.combos
	for _, key := range slices.Clone(job.keys) {
		if r.role(job, key, combos) != roleOther {
			continue
		}
		var values []string
		for _, v := range distinct(combos, key) {
			if v != "none" {
				values = append(values, v)
			}
		}
		roles, separator := zipped(key, values)
		if roles == nil {
			continue
		}
		names := make([]string, len(roles))
		for i, role := range roles {
			if names[i] = role; role == roleOther {
				names[i] = fmt.Sprintf("%s_%d", key, i+1)
			}
		}
		r.found = append(r.found, Note{Pos: firstPos(combos, key), Text: fmt.Sprintf("%s holds several values: %s", key, strings.Join(names, ", "))})
		next := make([]combo, len(combos))
		for i, c := range combos {
			cells := maps.Clone(c.cells)
			if whole, ok := cells[key]; ok && whole.text != "" {
				for n, part := range split(whole.text, separator) {
					cells[names[n]] = cell{part, whole.pos}
				}
			}
			delete(cells, key)
			next[i] = combo{cells, c.pos}
		}
		combos = next
		at := slices.Index(job.keys, key)
		job.keys = slices.Replace(slices.Clone(job.keys), at, at+1, names...)
	}
	return combos
}

func split(text, separator string) []string {
	if separator == " " {
		return strings.Fields(text)
	}
	parts := strings.Split(text, separator)
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// zipped finds out how the texts of a key are made up; nil if they are not.
func zipped(key string, values []string) (roles []string, separator string) {
	if len(values) == 0 {
		return nil, ""
	}
	for _, separator = range zipSeparators {
		n := len(split(values[0], separator))
		if n < 2 || slices.ContainsFunc(values, func(v string) bool { return len(split(v, separator)) != n }) {
			continue
		}
		// The key may name the parts: python_cuda_torch.
		if words := strings.FieldsFunc(key, func(c rune) bool { return c == '_' || c == '-' || c == ' ' || c == '.' }); len(words) == n {
			named := make([]string, n)
			for i, word := range words {
				named[i] = roleOf(word)
			}
			if fits(named, values, separator) {
				return named, separator
			}
		}
		byText := make([]string, n)
		for i, part := range split(values[0], separator) {
			byText[i] = byValue(part)
		}
		if fits(byText, values, separator) {
			return byText, separator
		}
	}
	return nil, ""
}

// fits reports whether every text splits into values of these roles, at least two of them known
// and none twice.
func fits(roles, values []string, separator string) bool {
	known := map[string]bool{}
	for i, role := range roles {
		if role == roleOther {
			// With - and _ between them, words that mean nothing are most likely one name.
			if separator == "-" || separator == "_" {
				return false
			}
			continue
		}
		if known[role] {
			return false
		}
		known[role] = true
		for _, v := range values {
			if _, ok := normal(role, split(v, separator)[i]); !ok {
				return false
			}
		}
	}
	return len(known) >= 2
}

func (r *reader) errorAt(pos diag.Pos, hint, format string, args ...any) {
	d := diag.Diagnostic{Rule: "workflow", Pos: pos, Message: fmt.Sprintf(format, args...), Hint: hint}
	if !slices.ContainsFunc(r.list, func(e diag.Diagnostic) bool { return e.Message == d.Message && e.Pos == d.Pos }) {
		r.list.Add(d)
	}
}

// guess says once what a value was taken for.
func (r *reader) guess(pos diag.Pos, format string, args ...any) {
	n := Note{Pos: pos, Text: fmt.Sprintf(format, args...)}
	if !slices.ContainsFunc(r.guessed, func(g Note) bool { return g.Text == n.Text }) {
		r.guessed = append(r.guessed, n)
	}
}

// row reads one combination.
func (r *reader) row(job *workflowJob, c combo, roles map[string]string) row {
	out := row{kind: matrix.KindWheel}
	at := map[string]cell{}
	toolkit := ""
	for key, role := range roles {
		v, ok := c.cells[key]
		if !ok {
			continue
		}
		at[role] = v
		text, _ := normal(role, v.text)
		switch role {
		case roleOS:
			out.os = text
		case rolePython:
			out.python = text
			if strings.Count(v.text, ".") > 1 {
				r.guess(v.pos, "%s became Python %s: wheels are made for a minor version", v.text, text)
			}
		case roleCUDA:
			if rocm, isROCm := strings.CutPrefix(text, "rocm "); isROCm {
				out.rocm = rocm
			} else {
				out.cuda = text
			}
		case roleROCm:
			out.rocm = cmp.Or(text, out.rocm)
		case roleTorch:
			out.torch = text
		case roleArch:
			out.arch = text
		case roleKind:
			out.kind = text
		case roleVersion:
			out.version = text
		case roleToolkit:
			toolkit = text
		}
	}
	switch toolkit { // "118" is 11.8 for CUDA, and 6.1 is a version of whatever is named beside it
	case "rocm":
		out.rocm, out.cuda = cmp.Or(out.rocm, out.cuda), ""
	case "cpu":
		out.rocm, out.cuda = "", ""
	}
	if _, local, ok := strings.Cut(at[roleTorch].text, "+"); ok && out.cuda == "" && out.rocm == "" {
		out.cuda, out.rocm = compat.ParseToolkitTag(local)
	}
	if out.cuda != "" && out.rocm != "" {
		r.errorAt(c.pos, "", "a job has both CUDA %s and ROCm %s", out.cuda, out.rocm)
	}
	out.cuda = r.fullCUDA(out.cuda, at[roleCUDA])
	if out.kind == matrix.KindSdist && (out.cuda != "" || out.rocm != "") {
		r.guess(c.pos, "an sdist is the same for every toolkit; that of the sdist row is left out")
		out.cuda, out.rocm, out.arch = "", "", ""
	}
	if out.cuda == "" && out.rocm == "" {
		out.arch = ""
	}
	if out.python == "" {
		if text, ok := normal(rolePython, job.python); ok {
			out.python = text
			r.guess(job.pos, "the matrix has no Python version; a step of %s sets up %s", job.id, job.python)
		} else {
			out.python = matrix.DefaultPython[0]
			r.guess(job.pos, "the matrix of %s has no Python version: %s", job.id, out.python)
		}
	}
	out.os, out.platform = r.system(job, cmp.Or(out.os, job.runsOn), cmp.Or(at[roleOS].pos, job.pos))
	return out
}

// fullCUDA adds the patch version that images are named for.
func (r *reader) fullCUDA(cuda string, from cell) string {
	if cuda == "" || strings.Count(cuda, ".") > 1 {
		return cuda
	}
	full := patchOf(r.table, cuda)
	if full != cuda {
		r.guess(from.pos, "%s became CUDA %s, because images are named for a patch version", from.text, full)
	}
	return full
}

// patchOf returns the release of a CUDA series to use: the newest that came as an installer.
func patchOf(table *compat.Table, series string) string {
	for _, v := range matrix.DefaultCUDA {
		if compat.Minor(v) == series {
			return v
		}
	}
	published := table.CUDAVersions(series)
	for _, v := range slices.Backward(published) {
		if d, ok := table.Driver(v); ok && d.Linux != "" {
			return v
		}
	}
	if len(published) > 0 {
		return published[len(published)-1]
	}
	return series
}

// latest are the runners that GitHub's moving names stand for.
var latest = map[string]string{
	"ubuntu-latest": "ubuntu-24.04", "windows-latest": "windows-2025", "macos-latest": "macos-15",
}

// system returns the name of an operating system, and a platform tag if kiln does not know it.
func (r *reader) system(job *workflowJob, name string, pos diag.Pos) (system, platform string) {
	if name == "" {
		r.guess(job.pos, "the runner of %s is not written out: %s", job.id, matrix.DefaultOS)
		return matrix.DefaultOS, ""
	}
	if concrete, ok := latest[name]; ok {
		r.guess(pos, "%s became %s", name, concrete)
		return concrete, ""
	}
	name = strings.Trim(notInNames.ReplaceAllString(name, "-"), "-")
	if _, known := r.table.Platform(name); known {
		return name, ""
	}
	lower := strings.ToLower(name)
	arm := strings.Contains(lower, "arm") || strings.Contains(lower, "aarch64")
	switch {
	case strings.Contains(lower, "win") && !strings.Contains(lower, "darwin"):
		platform = "win_amd64"
	case strings.Contains(lower, "mac"), strings.Contains(lower, "darwin"):
		platform = "macosx_11_0_arm64"
	case arm:
		platform = "linux_aarch64"
	default:
		platform = "linux_x86_64"
	}
	r.guess(pos, "the runner %s was taken for %s", name, platform)
	return cmp.Or(name, matrix.DefaultOS), platform
}

var (
	notInNames = regexp.MustCompile(`[^A-Za-z0-9._+-]+`)
	notInAxes  = regexp.MustCompile(`[^a-z0-9_]+`)
)

// customAxes gives rows that would be equal otherwise the keys in which they differ. A key that
// follows from the others makes no rows and is left out.
func (r *reader) customAxes(job *workflowJob, combos []combo, keys []string, rows []row) {
	for _, key := range keys {
		values := distinct(combos, key)
		pos := firstPos(combos, key)
		if len(values) == 1 {
			r.found = append(r.found, Note{Pos: pos, Text: fmt.Sprintf("%s is %s in every job; packages.yml does not have it", key, values[0])})
			continue
		}
		first := map[row]string{}
		follows := true
		for i, c := range combos {
			v := c.cells[key].text
			if earlier, ok := first[rows[i]]; ok && earlier != v {
				follows = false
				break
			}
			first[rows[i]] = v
		}
		if follows {
			r.found = append(r.found, Note{Pos: pos, Text: key + " makes no rows of its own; packages.yml does not have it"})
			continue
		}
		name := strings.Trim(notInAxes.ReplaceAllString(strings.ToLower(key), "_"), "_")
		if name == "" || digit(name[0]) || matrix.ReservedAxis(name) {
			name = strings.Trim("axis_"+name, "_")
		}
		if !slices.Contains(r.custom, name) {
			r.custom = append(r.custom, name)
		}
		for i, c := range combos {
			axes := matrix.Axes(rows[i].custom).Map()
			axes[name] = cmp.Or(strings.Trim(notInNames.ReplaceAllString(c.cells[key].text, "-"), "-"), "none")
			rows[i].custom = ""
			for _, n := range slices.Sorted(maps.Keys(axes)) {
				rows[i].custom += "," + n + "=" + axes[n]
			}
			rows[i].custom = rows[i].custom[1:]
		}
		r.found = append(r.found, Note{Pos: pos, Text: fmt.Sprintf("%s is an axis of its own: %s", key, strings.Join(values, ", "))})
		for _, variable := range job.variables[key] {
			if r.variables == nil {
				r.variables = map[string]string{}
			}
			r.variables[variable] = name
		}
	}
}
