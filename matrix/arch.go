package matrix

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kiln-build/kiln/compat"
)

// archErrors reports every mistake in an architecture list at its own column.
func (c *checker) archErrors(text string, at place, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			c.archErrors(text, at, e)
		}
		return
	}
	var ae *compat.ArchError
	if !errors.As(err, &ae) {
		c.errorf(at, "arch", "", "%v", err)
		return
	}
	offset := min(max(ae.Offset, 0), len(text))
	where := at.at(utf8.RuneCountInString(text[:offset]), max(1, utf8.RuneCountInString(ae.Item)))
	hint := ""
	if ae.Suggestion != "" {
		hint = "did you mean " + strconv.Quote(ae.Suggestion) + "?"
	}
	c.errorf(where, "arch", hint, "%q %s", ae.Item, ae.Msg)
}

// archNumbers writes an architecture list as packages with a variable of their own
// want it: "80;90;120".
func archNumbers(text string) string {
	list, err := compat.ParseArchList(text)
	if err != nil {
		return ""
	}
	var out []string
	for _, a := range list.Items() {
		out = append(out, strconv.Itoa(a.Major)+strconv.Itoa(a.Minor)+a.Suffix)
	}
	return strings.Join(out, archSeparator)
}

// archSeparator is what stands between architectures, unless a template asks for another.
const archSeparator = ";"
