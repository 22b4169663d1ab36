// Package matrix turns packages.yml into a plan: which wheels will be built, which
// not, and why. It serves `kiln plan` and `kiln schema`, and every command that works
// on rows starts from its [Plan].
//
// The way of the data is one direction: text → [Parse] → [File] (checked, every value
// with its position) → [File.Plan] (a pure function of the file and [Options]) →
// [Plan] with [Row] values in a stable order. Mistakes are collected, never thrown at
// the first one, and each knows its line and column.
//
// The package reads no environment, fetches nothing and builds nothing. Whether a
// combination of torch, CUDA, Python and OS exists is asked of package compat.
package matrix

//go:generate go run ./internal/generate
