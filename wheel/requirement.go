package wheel

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Requirement is a dependency specifier (PEP 508), the value of Requires-Dist.
type Requirement struct {
	// Name is the normalized project name, RawName the one written.
	Name, RawName string
	// Extras are normalized (PEP 685), sorted, each once.
	Extras []string
	// Specifier restricts the version. It is empty if URL is set.
	Specifier SpecifierSet
	// URL is the direct reference after '@'.
	URL string
	// Marker is the environment marker after ';' as written. Its syntax has
	// been checked, its value has not been computed.
	Marker string
}

// ParseRequirement reads a dependency specifier such as
//
//	torch[opt]>=2.2,<3 ; python_version < "3.13"
//	flash-attn @ https://example.org/flash_attn-2.8.3.tar.gz
func ParseRequirement(s string) (Requirement, error) {
	p := requirementParser{text: s}
	r, err := p.requirement()
	if err != nil {
		return Requirement{}, fmt.Errorf("requirement %s: column %d: %w", quote(s), p.pos+1, err)
	}
	return r, nil
}

// String returns the requirement on one line: name as written, extras and
// clauses sorted, marker as written.
func (r Requirement) String() string {
	var b strings.Builder
	if r.RawName != "" {
		b.WriteString(r.RawName)
	} else {
		b.WriteString(r.Name)
	}
	if len(r.Extras) > 0 {
		b.WriteString("[" + strings.Join(r.Extras, ",") + "]")
	}
	b.WriteString(r.Specifier.String())
	if r.URL != "" {
		b.WriteString(" @ " + r.URL)
	}
	if r.Marker != "" {
		if r.URL != "" {
			b.WriteByte(' ') // otherwise the ';' would belong to the URL
		}
		b.WriteString("; " + r.Marker)
	}
	return b.String()
}

// requirementParser is a recursive descent over text. Methods leave pos where
// the trouble is when they return an error.
type requirementParser struct {
	text string
	pos  int
}

const blanks = " \t" // the only white space between tokens

func (p *requirementParser) rest() string { return p.text[p.pos:] }

func (p *requirementParser) skip(chars string) {
	p.pos = len(p.text) - len(strings.TrimLeft(p.rest(), chars))
}

// take consumes token if it comes next.
func (p *requirementParser) take(token string) bool {
	if !strings.HasPrefix(p.rest(), token) {
		return false
	}
	p.pos += len(token)
	return true
}

// expected builds the error for something other than what coming next.
func (p *requirementParser) expected(what string) error {
	if p.rest() == "" {
		return fmt.Errorf("expected %s, found the end", what)
	}
	return fmt.Errorf("expected %s, found %s", what, quote(p.rest()))
}

func (p *requirementParser) requirement() (r Requirement, err error) {
	p.skip(blanks)
	if r.RawName, err = p.name("a project name"); err != nil {
		return r, err
	}
	r.Name = NormalizeName(r.RawName)
	p.skip(blanks)
	if r.Extras, err = p.extras(); err != nil {
		return r, err
	}
	p.skip(blanks)
	next := "a version specifier, ';' or the end"
	if p.take("@") {
		if r.URL, err = p.url(); err != nil {
			return r, err
		}
		next = "';' or the end"
	} else if r.Specifier, err = p.specifiers(); err != nil {
		return r, err
	}
	p.skip(blanks)
	if p.rest() == "" {
		return r, nil
	}
	if !p.take(";") {
		return r, p.expected(next)
	}
	start := p.pos
	if err = p.marker(0); err != nil {
		return r, err
	}
	if p.rest() != "" {
		return r, p.expected("and, or or the end")
	}
	r.Marker = strings.Trim(p.text[start:], blanks)
	return r, nil
}

// name reads a project or extra name.
func (p *requirementParser) name(what string) (string, error) {
	s := p.rest()
	end := 0
	for end < len(s) && (isAlnum(s[end]) || isSeparator(s[end])) {
		end++
	}
	if !ValidName(s[:end]) {
		return "", p.expected(what)
	}
	p.pos += end
	return s[:end], nil
}

// extras reads "[" [ name *( "," name ) ] "]" or nothing.
func (p *requirementParser) extras() ([]string, error) {
	if !p.take("[") {
		return nil, nil
	}
	var extras []string
	p.skip(blanks)
	for !p.take("]") {
		if len(extras) > 0 {
			if !p.take(",") {
				return nil, p.expected("',' or ']' after an extra")
			}
			p.skip(blanks)
		}
		extra, err := p.name("the name of an extra")
		if err != nil {
			return nil, err
		}
		extras = append(extras, NormalizeName(extra))
		p.skip(blanks)
	}
	slices.Sort(extras)
	return slices.Compact(extras), nil
}

// url reads what follows '@' up to a blank.
func (p *requirementParser) url() (string, error) {
	p.skip(blanks)
	end := strings.IndexAny(p.rest(), blanks)
	if end < 0 {
		end = len(p.rest())
	}
	url := p.rest()[:end]
	if url == "" {
		return "", p.expected("a URL")
	}
	if i := strings.IndexFunc(url, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }); i >= 0 {
		p.pos += i
		return "", p.expected("a URL without white space")
	}
	p.pos += end
	return url, nil
}

// specifiers reads version clauses, in parentheses or not. The clauses are
// separated by commas of which one may stand at the end.
func (p *requirementParser) specifiers() (SpecifierSet, error) {
	var set SpecifierSet
	parenthesis := p.take("(")
	p.skip(blanks)
	for {
		operator, _ := cutOperator(p.rest())
		if operator == "" {
			break
		}
		start := p.pos
		p.pos += len(operator)
		p.skip(asciiSpace)
		clauses, err := p.clause(operator)
		if err != nil {
			p.pos = start
			return set, err
		}
		set.clauses = append(set.clauses, clauses...)
		p.skip(blanks)
		if !p.take(",") {
			break
		}
		p.skip(blanks)
	}
	if parenthesis && !p.take(")") {
		return set, p.expected("')'")
	}
	return set, nil
}

// clause reads the version after operator. The text after "===" has no grammar
// and swallows commas; clauses that follow it without a blank end up in it and
// are split off again.
func (p *requirementParser) clause(operator string) ([]Specifier, error) {
	ends := blanks + ",;)"
	if operator == "===" {
		ends = asciiSpace + ";)"
	}
	end := strings.IndexAny(p.rest(), ends)
	if end < 0 {
		end = len(p.rest())
	}
	text := p.rest()[:end]
	p.pos += end
	if operator == "===" {
		set, err := ParseSpecifierSet(operator + text)
		return set.clauses, err
	}
	c, err := newSpecifier(operator, text)
	return []Specifier{c}, err
}

// maxMarkerDepth bounds the nesting of parentheses, and with it the stack.
const maxMarkerDepth = 100

// marker reads atom *( ( "and" / "or" ) atom ). Precedence does not matter for
// the syntax.
func (p *requirementParser) marker(depth int) error {
	for {
		if err := p.markerAtom(depth); err != nil {
			return err
		}
		if !p.word("and") && !p.word("or") {
			return nil
		}
	}
}

// markerAtom reads a comparison or a marker in parentheses.
func (p *requirementParser) markerAtom(depth int) error {
	p.skip(blanks)
	if p.take("(") {
		if depth == maxMarkerDepth {
			return fmt.Errorf("marker nested deeper than %d parentheses", maxMarkerDepth)
		}
		if err := p.marker(depth + 1); err != nil {
			return err
		}
		if !p.take(")") {
			return p.expected("and, or or ')'")
		}
		p.skip(blanks)
		return nil
	}
	if err := p.markerOperand(); err != nil {
		return err
	}
	if err := p.markerOperator(); err != nil {
		return err
	}
	return p.markerOperand()
}

func (p *requirementParser) markerOperator() error {
	if operator, _ := cutOperator(p.rest()); operator != "" {
		p.pos += len(operator)
		return nil
	}
	if p.word("in") {
		return nil
	}
	if p.word("not") {
		p.skip(blanks)
		if p.word("in") {
			return nil
		}
		return p.expected("in after not")
	}
	return p.expected("an operator: " + strings.Join(operators, " ") + " in, not in")
}

// markerVariables are the names PEP 508 and its successors define, with the
// dotted spellings that old metadata contains.
var markerVariables = []string{
	"python_version", "python_full_version", "python_implementation",
	"os_name", "os.name", "sys_platform", "sys.platform",
	"platform_release", "platform_system", "platform_version", "platform.version",
	"platform_machine", "platform.machine",
	"platform_python_implementation", "platform.python_implementation",
	"implementation_name", "implementation_version",
	"extra", "extras", "dependency_groups",
}

// markerOperand reads a variable or a quoted string and the blanks around it.
func (p *requirementParser) markerOperand() error {
	p.skip(blanks)
	quoteChar := first(p.rest())
	if quoteChar != '"' && quoteChar != '\'' {
		if slices.ContainsFunc(markerVariables, p.word) {
			p.skip(blanks)
			return nil
		}
		return p.expected("a marker variable or a quoted string")
	}
	body := p.rest()[1:]
	end := strings.IndexByte(body, quoteChar)
	if end < 0 {
		return p.expected("a string with a closing quote")
	}
	// PEP 508 has no escapes. A backslash would mean one thing to a program in
	// Python, which evaluates the literal, and another to all other programs.
	if i := strings.IndexFunc(body[:end], func(r rune) bool { return r == '\\' || r != '\t' && unicode.IsControl(r) }); i >= 0 {
		p.pos += 1 + i
		return p.expected("a string without backslashes and control characters")
	}
	p.pos += 1 + end + 1
	p.skip(blanks)
	return nil
}

// word consumes w if it comes next and is not the beginning of a longer word.
func (p *requirementParser) word(w string) bool {
	s := p.rest()
	if !strings.HasPrefix(s, w) || len(s) > len(w) && (isAlnum(s[len(w)]) || s[len(w)] == '_' || s[len(w)] >= 0x80) {
		return false
	}
	p.pos += len(w)
	return true
}
