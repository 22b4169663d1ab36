// Package schema holds the JSON Schema of packages.yml, for `kiln schema` and for
// editors. The file is generated from the types of package matrix; `make generate`
// writes it anew.
package schema

import _ "embed"

// Packages is the JSON Schema (draft 2020-12) of packages.yml.
//
//go:embed packages.schema.json
var Packages []byte
