package compat

import (
	"regexp"
	"strings"
)

// imageSystems are the words by which images name the system they were made from, with the os
// value that it has here; $1 is the version. The last one that matches counts: a distribution is
// named behind what it holds.
var imageSystems = []struct {
	re *regexp.Regexp
	os string
}{
	{regexp.MustCompile(`ubuntu[:-]?(\d\d\.\d\d)`), "ubuntu-$1"},
	{regexp.MustCompile(`(?:rockylinux|rocky|ubi|redhat|rhel|el|centos|oraclelinux)[:-]?(\d+)\b`), "rocky-$1"},
	{regexp.MustCompile(`alma(?:linux)?[:-]?(\d+)\b`), "alma-$1"},
	{regexp.MustCompile(`debian[:-]?(\d+)\b`), "debian-$1"},
	{regexp.MustCompile(`\bbullseye\b`), "debian-11"},
	{regexp.MustCompile(`\bbookworm\b`), "debian-12"},
	{regexp.MustCompile(`\btrixie\b`), "debian-13"},
	{regexp.MustCompile(`\bfocal\b`), "ubuntu-20.04"},
	{regexp.MustCompile(`\bjammy\b`), "ubuntu-22.04"},
	{regexp.MustCompile(`\bnoble\b`), "ubuntu-24.04"},
}

var imagePolicy = regexp.MustCompile(`manylinux_?(\d+)_(\d+)`)

// ImageGLIBC returns the glibc of a container image as far as its name tells: wheels that are
// built in it may need that version. It is "" if the name says nothing.
func (t *Table) ImageGLIBC(image string) string {
	name := strings.ToLower(image)
	if m := imagePolicy.FindStringSubmatch(name); m != nil {
		return m[1] + "." + m[2]
	}
	if strings.Contains(name, "manylinux2014") {
		return "2.17"
	}
	at, found := -1, ""
	for _, s := range imageSystems {
		for _, m := range s.re.FindAllStringSubmatchIndex(name, -1) {
			if m[0] > at {
				at, found = m[0], string(s.re.ExpandString(nil, s.os, name, m))
			}
		}
	}
	if p, ok := t.Platform(found); ok && p.Exact {
		return p.GLIBC
	}
	return ""
}
