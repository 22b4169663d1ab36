// Package look is how pages of kiln look: one style sheet for those of an index and those of a
// build, light and dark, without anything from another host.
package look

import _ "embed"

// CSS is the style sheet.
//
//go:embed kiln.css
var CSS string
