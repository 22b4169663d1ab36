package audit

import (
	"debug/elf"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// checkPlatform finds out which systems the wheel runs on, and compares that with its tags.
func (c *checker) checkPlatform() {
	claimed := c.filename.Platform
	if c.opts.Platform != "" {
		claimed = []string{c.opts.Platform}
	}
	arch := c.wheelArch(claimed)
	req := newRequirements()
	req.arch = arch
	var linux []*object
	for _, o := range c.native() {
		if o.Kind != "elf" {
			continue
		}
		if arch != "" && o.Machine != arch && c.isWheel {
			c.find(RuleMachine, o.Path, "is for %s, but the wheel is tagged %s", o.Machine, strings.Join(claimed, "."))
			continue
		}
		if !o.elf.complete {
			c.findAs(Note, RuleObject, o.Path, "%s %s: only 64-bit little-endian files are looked into", o.elf.class, o.Machine)
			continue
		}
		req.addVersions(o.elf.versions)
		linux = append(linux, o)
	}
	if len(linux) == 0 {
		return
	}
	for _, o := range c.roots(linux) {
		c.outside(o, req)
	}
	platform := req.platform()
	platform.Claimed = claimed
	if !c.isWheel {
		platform.Claimed = []string{}
	}
	c.report.Platform = &platform
	c.comparePlatform(&platform, req)
}

// wheelArch is the CPU of the wheel's tags, or of its first native file.
func (c *checker) wheelArch(claimed []string) string {
	for _, tag := range claimed {
		if _, _, arch, ok := wheel.ManylinuxVersion(tag); ok {
			return arch
		}
		if arch, ok := strings.CutPrefix(tag, "linux_"); ok {
			return arch
		}
		if rest, ok := strings.CutPrefix(tag, "musllinux_"); ok {
			if parts := strings.SplitN(rest, "_", 3); len(parts) == 3 {
				return parts[2]
			}
		}
	}
	for _, o := range c.native() {
		if o.Kind == "elf" {
			return o.Machine
		}
	}
	return ""
}

// roots are the files whose needs count for the platform: extension modules, and files that no
// other file in the wheel needs. The others count through those that need them.
func (c *checker) roots(list []*object) []*object {
	needed := map[string]bool{}
	for _, o := range list {
		for _, lib := range o.Needed {
			needed[lib] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(o *object) bool {
		return o.Module == "" && needed[path.Base(o.Path)]
	})
}

// outside adds what a root needs from outside of the wheel. A library in the wheel counts as
// inside only if run paths lead to it.
func (c *checker) outside(root *object, req *requirements) {
	var newest policy
	if list := policies(req.arch); len(list) > 0 {
		newest = list[len(list)-1]
	}
	found := c.loadTree(root)
	undefined := map[string]bool{}
	for i := range root.undefined {
		undefined[root.undefined[i].name] = true
	}
	for _, lib := range root.Needed {
		if req.undefined[lib] == nil {
			req.undefined[lib] = map[string]bool{}
		}
		maps.Copy(req.undefined[lib], undefined)
	}
	req.level = max(req.level, root.elf.x86Level)
	seen := map[string]bool{}
	queue := slices.Clone(root.Needed)
	for len(queue) > 0 {
		lib := queue[0]
		queue = queue[1:]
		if seen[lib] || isLoader(lib) {
			continue
		}
		seen[lib] = true
		o := found[lib]
		if newest.libraries[lib] {
			if o == nil {
				req.needed[lib] = root.Path
			}
			continue // a system's own library brings what it needs
		}
		if o == nil {
			req.needed[lib] = root.Path
			continue
		}
		queue = append(queue, o.Needed...)
	}
}

// loadTree resolves the libraries that a file needs to files of the wheel, as the loader
// would: through run paths relative to the file, those of the root first.
func (c *checker) loadTree(root *object) map[string]*object {
	files := map[string]*object{}
	for _, o := range c.objects {
		if o.Kind == "elf" {
			files[o.Path] = o
		}
	}
	found := map[string]*object{}
	rootPaths := originPaths(root)
	var visit func(o *object)
	visit = func(o *object) {
		dirs := slices.Concat(rootPaths, originPaths(o))
		for _, lib := range o.Needed {
			if _, ok := found[lib]; ok || strings.HasPrefix(lib, "libpython3") {
				continue
			}
			found[lib] = nil
			for _, dir := range dirs {
				if f := files[path.Join(dir, lib)]; f != nil && f.Machine == root.Machine {
					found[lib] = f
					visit(f)
					break
				}
			}
		}
	}
	visit(root)
	return found
}

// originPaths are the run paths of a file that are relative to it, as folders of the wheel.
func originPaths(o *object) []string {
	var out []string
	for _, dir := range o.RunPath {
		for _, origin := range []string{"$ORIGIN", "${ORIGIN}"} {
			if rest, ok := strings.CutPrefix(dir, origin); ok && (rest == "" || rest[0] == '/') {
				out = append(out, path.Join(path.Dir(o.Path), rest))
			}
		}
	}
	return out
}

// comparePlatform reports a tag that is not true.
func (c *checker) comparePlatform(p *Platform, req *requirements) {
	if c.level(req) {
		c.find(RuleISA, "", "needs x86-64-v%d, which no platform tag can say", req.level)
	}
	for _, tag := range p.Claimed {
		major, minor, arch, ok := wheel.ManylinuxVersion(tag)
		if !ok || major != 2 {
			continue
		}
		list := policies(arch)
		i := slices.IndexFunc(list, func(l policy) bool {
			_, m, _, _ := wheel.ManylinuxVersion(l.name + "_" + arch)
			return m >= minor
		})
		if i < 0 {
			continue // newer than what is known
		}
		level := list[i]
		if missing := level.admits(req.versions); len(missing) > 0 {
			c.find(RulePlatform, c.whoNeeds(missing[0]), "tagged %s, but needs %s; true would be %s", tag, strings.Join(missing, ", "), p.Symbols).
				with(missing...)
		} else if better := req.symbolPolicy(list); better >= 0 && better < i && p.Tag != tag && strings.HasPrefix(p.Tag, "manylinux") {
			// Only one note, for the oldest tag.
			if c.oldest(p.Claimed) == tag {
				c.find(RulePlatformLoose, "", "tagged %s, but %s is true as well", tag, p.Tag)
			}
		}
		if c.oldest(p.Claimed) != tag {
			continue
		}
		for _, lib := range slices.Sorted(maps.Keys(req.needed)) {
			switch {
			case level.libraries[lib] || strings.HasPrefix(lib, "libpython3"):
			case expectedOutside(lib):
				// Normal for an extension of torch or CUDA; whether it is there is another rule.
			case c.inWheel(lib):
				c.findAs(Warning, RulePlatformLibrary, req.needed[lib], "needs %s, which is in the wheel, but no run path leads there", lib).with(lib).
					because("The file works only if something loads the library before it.").
					repair("Add a run path relative to $ORIGIN.")
			case c.leadsOutside(lib):
				c.findAs(Note, RulePlatformLibrary, req.needed[lib], "needs %s, which another package must bring", lib).with(lib).
					because("A run path leads to the folder of another package.").
					repair("Make sure that package is among the dependencies.")
			default:
				c.find(RulePlatformLibrary, req.needed[lib], "needs %s, which a %s system need not have", lib, tag).with(lib)
			}
		}
	}
}

func (c *checker) level(req *requirements) bool {
	return req.level > 1 && c.isWheel
}

// oldest is the claimed manylinux tag with the oldest glibc.
func (c *checker) oldest(claimed []string) string {
	best, bestMinor := "", 0
	for _, tag := range claimed {
		if _, minor, _, ok := wheel.ManylinuxVersion(tag); ok && (best == "" || minor < bestMinor) {
			best, bestMinor = tag, minor
		}
	}
	return best
}

func (c *checker) inWheel(lib string) bool { return c.byName[lib] != nil }

// leadsOutside says whether a file that needs lib has a run path out of the folder of its own
// package, as extensions of other packages' libraries do.
func (c *checker) leadsOutside(lib string) bool {
	for _, o := range c.objects {
		if !slices.Contains(o.Needed, lib) {
			continue
		}
		top, _, _ := strings.Cut(o.Path, "/")
		for _, dir := range originPaths(o) {
			if first, _, _ := strings.Cut(dir, "/"); first != top {
				return true
			}
		}
	}
	return false
}

// whoNeeds is a file that needs a symbol version.
func (c *checker) whoNeeds(version string) string {
	for _, o := range c.objects {
		if o.elf == nil || o.elf.kind != elf.ET_DYN {
			continue
		}
		for _, v := range o.elf.versions {
			if v.version == version {
				return o.Path
			}
		}
	}
	return ""
}
