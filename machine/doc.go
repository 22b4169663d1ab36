// Package machine knows the machine, or the container, that builds and runs GPU
// Python packages. It serves two jobs: "what can this machine build and run, and what
// is wrong with it" (doctor) and "why did this fail, and what do I do" (every failed
// build, test or import).
//
// Three parts, each a pure function:
//
//   - [Diagnose] turns the [Evidence] of a failure (exit state, log, what was asked
//     for, what was found) into causes with fixes. It is one table; docs/diagnoses.md
//     is made from it.
//   - [Probe] looks for compilers, toolkits, Python, torch, GPUs and drivers through
//     a [Host], the one door to files, variables and programs, so that a Windows
//     machine can be looked at in a test on Linux.
//   - [SelectArchs] decides for which GPUs to compile, from what the user said, what
//     is in the machine and what this nvcc can make.
//
// It builds nothing, installs nothing and loads no GPU driver into its own process.
// Which versions go together is not known here but in package compat.
package machine

//go:generate go run ./internal/generate ..
