package publish

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// family is the set of tags that releases of one package and version can have under a template.
type family struct {
	template       string
	pkg, version   string
	pattern        *regexp.Regexp
	dated, counted bool
}

var tagVariable = regexp.MustCompile(`\{(package|version|date|counter)\}`)

// partSuffix stands behind the tags of releases that one alone could not hold.
const partSuffix = "-part"

func newFamily(template, pkg, version string) (*family, error) {
	f := &family{template: template, pkg: pkg, version: version}
	var b strings.Builder
	b.WriteString("^")
	last := 0
	for _, m := range tagVariable.FindAllStringSubmatchIndex(template, -1) {
		b.WriteString(regexp.QuoteMeta(template[last:m[0]]))
		switch template[m[2]:m[3]] {
		case "package":
			b.WriteString(regexp.QuoteMeta(pkg))
		case "version":
			b.WriteString(regexp.QuoteMeta(version))
		case "date":
			f.dated = true
			b.WriteString(`(?P<date>\d{4}-\d{2}-\d{2})`)
		case "counter":
			f.counted = true
			b.WriteString(`(?P<counter>\d+)`)
		}
		last = m[1]
	}
	b.WriteString(regexp.QuoteMeta(template[last:]) + `(?:` + partSuffix + `(?P<part>\d+))?$`)
	var err error
	if f.pattern, err = regexp.Compile(b.String()); err != nil {
		return nil, fmt.Errorf("tag %q: %w", template, err)
	}
	if tag := f.render(time.Unix(0, 0), 1); !validTag(tag) {
		return nil, fmt.Errorf("tag %q: %q is no name for a git tag", template, tag)
	}
	return f, nil
}

// validTag follows `git check-ref-format` as far as targets need it: tags are also names of
// folders.
func validTag(tag string) bool {
	return tag != "" && !strings.ContainsFunc(tag, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\/`, r) }) &&
		!strings.Contains(tag, "..") && !strings.Contains(tag, "@{") && !strings.HasPrefix(tag, ".") && !strings.HasPrefix(tag, "-") &&
		!strings.HasSuffix(tag, ".") && !strings.HasSuffix(tag, ".lock")
}

// match reports whether a release belongs to the family.
func (f *family) match(tag string) bool { return f.pattern.MatchString(tag) }

// group returns a named part of a tag.
func (f *family) group(tag, name string) string {
	m := f.pattern.FindStringSubmatch(tag)
	i := f.pattern.SubexpIndex(name)
	if m == nil || i < 0 {
		return ""
	}
	return m[i]
}

// render fills in the template.
func (f *family) render(now time.Time, counter int) string { return f.fill(f.template, now, counter) }

func (f *family) fill(template string, now time.Time, counter int) string {
	return strings.NewReplacer("{package}", f.pkg, "{version}", f.version, "{date}", now.UTC().Format(time.DateOnly), "{counter}", strconv.Itoa(counter)).Replace(template)
}

// next chooses the tag for new files among the releases that are there. A release that was begun
// and not finished is continued.
func (f *family) next(releases []Release, now time.Time) (string, error) {
	if !f.dated && !f.counted {
		return f.render(now, 1), nil
	}
	today, newest := now.UTC().Format(time.DateOnly), 0
	for i := range releases {
		r := &releases[i]
		if !f.match(r.Tag) || f.group(r.Tag, "part") != "" {
			continue
		}
		if r.Created.IsZero() {
			return r.Tag, nil // begun, not finished
		}
		if f.dated && f.group(r.Tag, "date") != today {
			continue
		}
		n, _ := strconv.Atoi(f.group(r.Tag, "counter")) // empty without a counter
		newest = max(newest, n, 1)
	}
	if newest > 0 && !f.counted {
		return "", fmt.Errorf("the release %s of today exists; add {counter} to the tag, such as \"v{date}.{counter}\"", f.render(now, 1))
	}
	return f.render(now, newest+1), nil
}

// part returns the tag of the n-th release that holds what does not fit into the first.
func part(tag string, n int) string {
	if n <= 1 {
		return tag
	}
	return tag + partSuffix + strconv.Itoa(n)
}
