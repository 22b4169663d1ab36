// Package jit turns a spec of a few C++, CUDA or HIP files into a Python module that works with
// this Python and this torch. It serves `kiln jit` and kiln.load: a module that was compiled
// elsewhere is taken if it fits, else one is compiled, once, and kept.
//
// [Load] goes through these states:
//
//   - remembered: nothing that decided the last answer has changed, as far as the file system says
//     (time, size and number of every input), so the answer is the same. It takes milliseconds, and
//     no program is run.
//   - prebuilt: modules beside the interpreter, in folders and in wheels that the spec names. Each
//     is audited against this Python and this torch without loading it, then loaded in a child
//     process with a time limit. One that does not fit is reported with its reason, never replaced.
//   - cached: an entry of the [Store] whose inputs are the same, byte by byte.
//   - compiled: by the jobs of package engine, in a private folder, under a lock, so that of many
//     processes that want the same module one compiles and the others wait.
//
// What decides the result is in the key of an entry: sources, the headers that the compilers really
// read, flags, compilers, Python, torch and its libraries. [Store.Explain] compares two of them.
//
// The package does not install anything, does not import torch to learn about it, and does not read
// the environment: [Options] carry it.
package jit
