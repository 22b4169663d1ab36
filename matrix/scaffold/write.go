package scaffold

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/matrix"
)

// maxLine is how long an entry may be on one line.
const maxLine = 120

// document is a packages.yml with one package.
type document struct {
	comment      string
	name         string
	description  string
	versions     []string
	git, ref     string
	path         string
	versionFile  string
	versionRegex string
	extraDeps    []string
	buildArgs    string
	testImport   []string
	wheelTag     string
	env          []variable
	alsoReads    []string // variables, for a comment
	arch         []archCase
	localVersion string
	groups       []group
}

// variable is an environment variable of the build, of CUDA rows alone if cuda is set.
type variable struct {
	name, value string
	cuda        bool
}

// archCase is a line of `arch`; the pattern is empty if there is one list for all.
type archCase struct{ pattern, list string }

var plainText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._+-]*$`)

// yamlWords read as something else than text in YAML 1.1 or 1.2.
var yamlWords = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

// text writes a YAML text.
func text(s string) string {
	if plainText.MatchString(s) && !slices.Contains(yamlWords, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// version writes a text that might look like a number.
func version(s string) string { return strconv.Quote(s) }

func list(values []string, write func(string) string) string {
	written := make([]string, len(values))
	for i, v := range values {
		written[i] = write(v)
	}
	if len(written) == 1 {
		return written[0]
	}
	return "[" + strings.Join(written, ", ") + "]"
}

// pair writes an axis.
func (a axis) pair() (key, value string) {
	if a.custom || a.name == "os" {
		return a.name, list(a.values, text)
	}
	return a.name, list(a.values, version)
}

type entry struct{ key, value string }

// flowMap writes the axes of an exclude rule as one flow map.
func flowMap(axes []axis) string {
	var plainAxes, custom []string
	for _, a := range axes {
		key, value := a.pair()
		if a.custom {
			custom = append(custom, key+": "+value)
		} else {
			plainAxes = append(plainAxes, key+": "+value)
		}
	}
	if custom != nil {
		plainAxes = append(plainAxes, "axes: {"+strings.Join(custom, ", ")+"}")
	}
	return "{" + strings.Join(plainAxes, ", ") + "}"
}

// lines writes a group, on one line if it fits.
func (g *group) lines(indent string) []string {
	var entries []entry
	add := func(key, value string) { entries = append(entries, entry{key, value}) }
	if g.kind == matrix.KindSdist {
		add("kind", g.kind)
	}
	var custom []string
	for _, a := range g.axes {
		key, value := a.pair()
		switch {
		case a.custom:
			custom = append(custom, key+": "+value)
		case key == "os" && value == matrix.DefaultOS:
		default:
			add(key, value)
		}
	}
	if custom != nil {
		add("axes", "{"+strings.Join(custom, ", ")+"}")
	}
	if g.zip != nil {
		add("zip", "["+strings.Join(g.zip, ", ")+"]")
	}
	if g.platform != "" {
		add("platform", g.platform)
	}
	if g.arch != "" {
		add("arch", version(g.arch))
	}
	var rules []string
	for _, rule := range g.exclude {
		rules = append(rules, flowMap(rule))
	}
	var flow []string
	for _, e := range entries {
		flow = append(flow, e.key+": "+e.value)
	}
	if rules != nil {
		flow = append(flow, "exclude: ["+strings.Join(rules, ", ")+"]")
	}
	if line := indent + "- {" + strings.Join(flow, ", ") + "}"; len(line) <= maxLine {
		return []string{line}
	}
	var out []string
	lead := indent + "- "
	for _, e := range entries {
		out = append(out, lead+e.key+": "+e.value)
		lead = indent + "  "
	}
	if rules != nil {
		out = append(out, lead+"exclude:")
		for _, rule := range rules {
			out = append(out, indent+"    - "+rule)
		}
	}
	return out
}

// cost is what a group adds to the length of a file: its characters, and something for each line.
func (g *group) cost() int {
	n := 0
	for _, line := range g.lines("      ") {
		n += len(line) + 20
	}
	return n
}

// bytes writes the file.
func (d *document) bytes() []byte {
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if d.comment != "" {
		put("# %s", d.comment)
	}
	put("packages:")
	put("  %s:", text(d.name))
	if d.description != "" {
		put("    description: %s", strconv.Quote(d.description))
	}
	if len(d.versions) > 0 {
		put("    versions: [%s]", strings.Trim(list(d.versions, version), "[]"))
	}
	switch {
	case d.git != "":
		put("    source: {git: %s, ref: %s}", strconv.Quote(d.git), strconv.Quote(d.ref))
	case d.path != "":
		put("    source: {path: %s}", pathText(d.path))
	}
	switch {
	case d.versionFile != "" && d.versionRegex != "":
		put("    version_from: {file: %s, pattern: '%s'}", pathText(d.versionFile), d.versionRegex)
	case d.versionFile != "":
		put("    version_from: {file: %s}", pathText(d.versionFile))
	}
	if len(d.extraDeps) > 0 {
		put("    extra_deps: [%s]", strings.Trim(list(d.extraDeps, text), "[]"))
	}
	if d.buildArgs != "" {
		put("    build_args: %s", strconv.Quote(d.buildArgs))
	}
	if len(d.testImport) > 0 {
		put("    test_import: %s", list(d.testImport, text))
	}
	if d.wheelTag != "" {
		put("    wheel_tag: %s", d.wheelTag)
	}
	if len(d.alsoReads) > 0 {
		for _, line := range wrap("setup.py also reads: "+strings.Join(d.alsoReads, ", "), 90) {
			put("    # %s", line)
		}
	}
	if len(d.env) > 0 {
		var parts []string
		for _, v := range d.env {
			value := strconv.Quote(v.value)
			if v.cuda {
				value = "{cuda: " + value + "}"
			}
			parts = append(parts, v.name+": "+value)
		}
		put("    env: {%s}", strings.Join(parts, ", "))
	}
	switch {
	case len(d.arch) == 1 && d.arch[0].pattern == "":
		put("    arch: %s", version(d.arch[0].list))
	case len(d.arch) > 0:
		put("    arch:")
		for _, c := range d.arch {
			put("      %s: %s", text(c.pattern), version(c.list))
		}
	}
	if d.localVersion != "" {
		put("    local_version: %s", strconv.Quote(d.localVersion))
	}
	put("    matrix:")
	for _, g := range d.groups {
		for _, line := range g.lines("      ") {
			put("%s", line)
		}
	}
	return []byte(b.String())
}

var plainPath = regexp.MustCompile(`^[A-Za-z0-9_./-]*[A-Za-z_./-][A-Za-z0-9_./-]*$`)

func pathText(s string) string {
	if plainPath.MatchString(s) && s[0] != '-' && !slices.Contains(yamlWords, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// wrap breaks a text at its spaces.
func wrap(s string, width int) []string {
	var out []string
	line := ""
	for word := range strings.FieldsSeq(s) {
		if line != "" && len(line)+1+len(word) > width {
			out = append(out, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(out, line)
}

// archOf returns the architecture setting of a package whose CUDA rows have these lists. ok is
// false if the list does not follow from the CUDA version.
func archOf(rows []row) (cases []archCase, ok bool) {
	lists, counts := map[string]string{}, map[string]int{}
	for _, r := range rows {
		switch {
		case r.cuda == "" && r.arch == "":
			continue
		case r.cuda == "":
			return nil, false
		}
		if before, seen := lists[r.cuda]; seen && before != r.arch {
			return nil, false
		}
		lists[r.cuda] = r.arch
		counts[r.cuda]++
	}
	var lower string // of the range that is being read, from the newest down
	versions := matrix.SortedValues(counts)
	some := false
	for i, v := range slices.Backward(versions) {
		if lists[v] == "" {
			for _, l := range lists {
				some = some || l != ""
			}
			return nil, !some // no list at all is kiln's default; one for some is not a rule
		}
		lower = v
		if i > 0 && lists[versions[i-1]] == lists[v] {
			continue
		}
		pattern := ">=" + lower
		if i > 0 && compat.Minor(versions[i-1]) != compat.Minor(lower) {
			pattern = ">=" + compat.Minor(lower)
		}
		if i == 0 {
			pattern = "default"
		}
		cases = append(cases, archCase{pattern, lists[v]})
	}
	if len(cases) == 1 {
		cases[0].pattern = ""
	}
	return cases, true
}
