// Package build turns the rows of a plan into tested wheels.
//
// [NewRecipe] is pure: a row, its settings and its resolved source become a [record.Recipe],
// whose digest says whether a result can be used again. [Run] gives the recipes to the
// engine; each attempt goes through the stages listed in stages.go, inside environments
// that a [sandbox.Maker] makes: on the host or in containers. What comes out is in dist/,
// with a [record.Record] of everything that went in.
//
// The package decides which command is run with which variables. It does not wait,
// retry or count memory (package engine), does not know how to find fault with a binary
// (package audit) and does not explain error texts (package machine).
package build
