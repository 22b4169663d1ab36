package matrix

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// buildArgs is what a line of build_args comes to for one front-end.
type buildArgs struct {
	words  []string          // for the front-end's command line
	config []Entry[[]string] // for the build back-end, in the order written
}

// argMeaning says what becomes of an argument that people give to `pip wheel`,
// `python -m build` or `uv build`.
type argMeaning int

const (
	argKeep   argMeaning = iota // the front-end gets it
	argDrop                     // kiln does it anyway, or it has no effect here
	argConfig                   // it becomes a setting of the build back-end
	argRefuse                   // kiln has another place for it
)

// argRule is one line of the table of arguments. One table serves all front-ends: build_args is
// often written for another one than the package is built with.
type argRule struct {
	names     string // all spellings, with blanks between them
	value     bool   // a value follows
	meaning   argMeaning
	frontends string // argKeep: the front-ends that know it, all if empty
	config    string // argConfig: the setting; empty if the value names it
	why       string // the note of what is dropped, or what to do instead
}

var argRules = []argRule{
	{names: "--no-build-isolation --no-isolation -n", meaning: argDrop, why: "builds are not isolated, unless build: {isolation: true} says so"},
	{names: "--wheel-dir --outdir --out-dir -o", value: true, meaning: argDrop, why: "kiln collects the files itself; --dist says where"},
	{names: "--wheel", meaning: argDrop, why: "the kind of the row says what is built"},
	{names: "--no-deps", meaning: argDrop, why: "only the package itself is built"},
	{names: "--no-index --offline", meaning: argDrop, why: "nothing is fetched while the package compiles"},
	{names: "--no-cache-dir --no-cache", meaning: argDrop, why: "the front-end never takes a wheel from a cache"},
	{names: "--cache-dir", value: true, meaning: argDrop, why: "kiln keeps downloads in a cache of its own"},
	{names: "--no-clean", meaning: argDrop, why: "the folder of a failed build stays; kiln shell opens it"},
	{names: "--use-pep517", meaning: argDrop, why: "every build goes through its back-end (PEP 517)"},
	{names: "--no-binary", value: true, meaning: argDrop, why: "the package itself is always built from its source"},
	{names: "-q -qq -qqq --quiet --no-color --disable-pip-version-check --no-input", meaning: argDrop, why: "the log keeps everything, the terminal shows progress"},
	{names: "--progress-bar --root-user-action", value: true, meaning: argDrop, why: "the log keeps everything, the terminal shows progress"},
	{names: "-v -vv -vvv --verbose", meaning: argKeep},
	{names: "--skip-dependency-check -x", meaning: argKeep, frontends: "build", why: "this front-end does not check them"},
	{names: "--check-build-dependencies", meaning: argKeep, frontends: "pip", why: "this front-end has no such check"},
	{names: "--config-settings --config-setting -C", value: true, meaning: argConfig},
	{names: "--global-option", value: true, meaning: argConfig, config: "--global-option"},
	{names: "--build-option", value: true, meaning: argConfig, config: "--build-option"},
	{names: "--sdist -s", meaning: argRefuse, why: "add a row of that kind: include: [{kind: sdist, python: …}]"},
	{names: "--python -p", value: true, meaning: argRefuse, why: "the row says which Python: set python in matrix, or --python"},
	{
		names: "--index-url -i --extra-index-url --index --default-index --find-links -f --trusted-host", value: true, meaning: argRefuse,
		why: "use kiln build --index-url, and torch_source for torch",
	},
	{names: "--requirement -r --constraint -c --build-constraint", value: true, meaning: argRefuse, why: "list the requirements in extra_deps"},
	{names: "--pre", meaning: argRefuse, why: "name the versions in extra_deps"},
	{names: "--only-binary", value: true, meaning: argRefuse, why: "kiln builds the package from its source"},
	{names: "--no-use-pep517", meaning: argRefuse, why: "every build goes through its back-end (PEP 517); remove it"},
	{names: "--install-option", value: true, meaning: argRefuse, why: "pip itself has dropped it; use --config-settings"},
	{
		names: "--upgrade -U --force-reinstall --ignore-installed -I --user --editable -e", meaning: argRefuse,
		why: "it belongs to pip install; kiln builds in an environment of its own, from extra_deps",
	},
	{names: "--target -t --prefix --root", value: true, meaning: argRefuse, why: "it belongs to pip install; kiln collects the files itself"},
}

// buildArgs gives every word of a build_args a meaning, with a note for what is dropped.
func (c *checker) buildArgs(p *pkg, line Text) buildArgs {
	var out buildArgs
	if !line.IsSet() {
		return out
	}
	frontend := frontendOf(p.spec)
	words, err := splitWords(line.Value)
	if err != nil {
		c.errorf(line.place, "build-args", "", "%v", err)
		return out
	}
	for i := 0; i < len(words); i++ {
		w := words[i]
		at := line.at(utf8.RuneCountInString(line.Value[:w.start]), utf8.RuneCountInString(line.Value[w.start:w.end]))
		if !strings.HasPrefix(w.text, "-") || w.text == "--" || w.text == "-m" {
			c.positional(at, w.text)
			continue
		}
		name, value, joined, rule := findArg(w.text)
		if rule == nil {
			if w.text == "-w" { // of build a flag, of pip an option with a folder
				if i+1 < len(words) && !strings.HasPrefix(words[i+1].text, "-") {
					i++
				}
				c.dropped(at, w.text, "kiln collects the files itself; --dist says where")
				continue
			}
			c.warnf(at, "build-args", "", "kiln does not know %s; %s gets it as it is", name, frontendName[frontend])
			out.words = append(out.words, w.text)
			continue
		}
		if rule.value && !joined {
			if i+1 == len(words) {
				c.errorf(at, "build-args", "", "%s needs a value", name)
				continue
			}
			i++
			value = words[i].text
		}
		switch rule.meaning {
		case argKeep:
			if rule.frontends != "" && !slices.Contains(strings.Fields(rule.frontends), frontend) {
				c.dropped(at, name, rule.why)
				continue
			}
			out.words = append(out.words, name)
		case argDrop:
			if name != "--no-build-isolation" && name != "--no-isolation" && name != "-n" || !p.spec.Build.Isolation.Value {
				c.dropped(at, name, rule.why)
				continue
			}
			c.errorf(at, "build-args", "keep one of the two", "%s contradicts build: {isolation: true}", name)
		case argConfig:
			key := rule.config
			if key == "" {
				if key, value, _ = strings.Cut(value, "="); key == "" {
					c.errorf(at, "build-args", "write "+name+"=KEY=VALUE", "%s needs a key", name)
					continue
				}
			}
			out.add(key, value)
		case argRefuse:
			c.errorf(at, "build-args", rule.why, "%s has no place in build_args", name)
		}
	}
	return out
}

func (b *buildArgs) add(key, value string) {
	i := slices.IndexFunc(b.config, func(e Entry[[]string]) bool { return e.Key.Value == key })
	if i < 0 {
		i = len(b.config)
		b.config = append(b.config, Entry[[]string]{Key: Text{Value: key}})
	}
	b.config[i].Value = append(b.config[i].Value, value)
}

func (c *checker) dropped(at place, name, why string) {
	c.notef(at, "build-args", "remove it", "%s is not needed: %s", name, why)
}

// positional reports a word that is no option.
func (c *checker) positional(at place, word string) {
	switch word {
	case ".", "./":
		c.dropped(at, word, "kiln builds the folder of the source")
	case "--":
	case "setup.py", "bdist_wheel", "bdist_egg", "python", "python3", "pip", "wheel", "build", "uv", "-m":
		c.errorf(at, "build-args", "write the options alone; build: {frontend: …} chooses build, pip or uv", "%q is a command, and kiln calls the front-end itself", word)
	default:
		c.errorf(at, "build-args", "source: says what is built; options begin with -", "%q is not an option", word)
	}
}

// findArg returns the rule for an option, its name, and the value that is joined to it.
func findArg(word string) (name, value string, joined bool, rule *argRule) {
	name, value, joined = strings.Cut(word, "=")
	for i := range argRules {
		r := &argRules[i]
		for spelling := range strings.FieldsSeq(r.names) {
			switch {
			case spelling == name:
				return name, value, joined, r
			case r.value && len(spelling) == 2 && strings.HasPrefix(word, spelling): // -Ckey=value
				return spelling, word[2:], true, r
			}
		}
	}
	return name, value, joined, nil
}

// frontendOf returns the program that builds the package.
func frontendOf(spec *Package) string {
	if spec.Build.Frontend.IsSet() {
		return spec.Build.Frontend.Value
	}
	return "build"
}

var frontendName = map[string]string{"build": "python -m build", "pip": "pip wheel", "uv": "uv build"}
