package publish

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/wheel"
)

// Keep says which published files stay. A file goes if one of the limits says so, and it is not
// the newest of its row.
type Keep struct {
	// Age is how old a file may be, and Releases how many of the newest releases of a project keep
	// their files. Zero is no limit.
	Age      time.Duration
	Releases int
}

// Removal is a file that a rule does not keep.
type Removal struct {
	Tag  string     `json:"tag"`
	File RemoteFile `json:"file"`
	Why  string     `json:"why"`
}

// rowKey is what is built again with every version: project, label, tags.
func rowKey(name string) (key string, project string, version wheel.Version, ok bool) {
	if w, err := wheel.ParseFilename(name); err == nil {
		return strings.Join([]string{w.Name, w.Version.Local(), strings.Join(w.Python, "."), strings.Join(w.ABI, "."), strings.Join(w.Platform, ".")}, "|"), w.Name, w.Version, true
	}
	if s, err := wheel.ParseSdistName(name); err == nil {
		return s.Name + "|sdist", s.Name, s.Version, true
	}
	return "", "", version, false
}

// PlanPrune says which files a rule does not keep, with what goes with them. It is a pure function.
func PlanPrune(releases []Release, keep Keep, now time.Time) []Removal {
	if keep == (Keep{}) {
		return nil
	}
	type published struct {
		tag     string
		file    RemoteFile
		key     string
		project string
		version wheel.Version
	}
	var all []published
	newest := map[string]wheel.Version{}
	tags := map[string][]string{} // by project, newest release first
	byAge := slices.Clone(releases)
	slices.SortStableFunc(byAge, func(a, b Release) int { return cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.Tag, a.Tag)) })
	for _, r := range byAge {
		for _, f := range r.Files {
			key, project, version, ok := rowKey(f.Name)
			if !ok {
				continue
			}
			all = append(all, published{r.Tag, f, key, project, version})
			if have, ok := newest[key]; !ok || version.Compare(have) > 0 {
				newest[key] = version
			}
			if !slices.Contains(tags[project], r.Tag) {
				tags[project] = append(tags[project], r.Tag)
			}
		}
	}
	var out []Removal
	for _, p := range all {
		if p.version.Compare(newest[p.key]) == 0 {
			continue
		}
		why := ""
		if age := now.Sub(p.file.Uploaded); keep.Age > 0 && age > keep.Age {
			why = fmt.Sprintf("it is %s old, and files stay for %d", plural(int(age.Hours()/24), "day"), int(keep.Age.Hours()/24))
		}
		if i := slices.Index(tags[p.project], p.tag); why == "" && keep.Releases > 0 && i >= keep.Releases {
			why = fmt.Sprintf("its release is number %d from the newest, and %s", i+1, plural(keep.Releases, "stays", "stay"))
		}
		if why == "" {
			continue
		}
		out = append(out, Removal{p.tag, p.file, why})
		for _, r := range releases {
			for _, f := range r.Files {
				if r.Tag == p.tag && strings.HasPrefix(f.Name, p.file.Name+".") {
					out = append(out, Removal{p.tag, f, "it goes with " + p.file.Name})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Removal) int { return strings.Compare(a.Tag+"\x00"+a.File.Name, b.Tag+"\x00"+b.File.Name) })
	return out
}

// Prune removes files and writes down that it did, before it does. unlist is called first with the
// names of the distributions, and must take them out of every index: nothing that is listed may be
// absent.
func Prune(ctx context.Context, target Target, removals []Removal, owner string, unlist func([]string) error) (err error) {
	if len(removals) == 0 {
		return nil
	}
	if target.Limits().NoOverwrite {
		return fmt.Errorf("%s keeps its files for ever; remove them where it is", target)
	}
	unlock, err := target.Lock(ctx, Owner{Name: owner, ID: rand.Text(), Time: time.Now().UTC()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	gone := map[string][]Removal{}
	var names []string
	for _, r := range removals {
		gone[r.Tag] = append(gone[r.Tag], r)
		if isDistribution(r.File.Name) {
			names = append(names, r.File.Name)
		}
	}
	if err := unlist(names); err != nil {
		return err
	}
	releases, err := target.List(ctx, func(tag string) bool { return gone[tag] != nil })
	if err != nil {
		return err
	}
	for _, rel := range releases {
		for _, r := range gone[rel.Tag] {
			rel.Changes = append(rel.Changes, Change{Time: time.Now().UTC().Truncate(time.Second), Name: r.File.Name, Action: "removed", Old: r.File.SHA256, By: owner, Reason: r.Why})
			rel.Files = slices.DeleteFunc(rel.Files, func(f RemoteFile) bool { return f.Name == r.File.Name })
		}
		if err := target.Finish(ctx, rel); err != nil {
			return err
		}
		for _, r := range gone[rel.Tag] {
			if err := target.Remove(ctx, rel.Tag, r.File.Name); err != nil {
				return err
			}
		}
	}
	return nil
}
