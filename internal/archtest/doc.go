// Package archtest holds the rules about kiln's packages that a linter can't see
// because they are about everything below a package, not only about what it
// imports itself. It has tests only.
package archtest

//go:generate go test . -run ^TestGoPackages$ -update
