// Package compat knows which torch × CUDA/ROCm × Python × OS × GPU architecture
// × host compiler combinations exist, and reads and reasons about lists of GPU
// architectures.
//
// It serves three jobs: "which rows of this matrix cannot work, and what would"
// (plan), "does this machine's toolchain fit" (doctor), and "which GPUs does
// this binary run on" (audit). It never looks at the running machine, the
// network or the environment; everything it says follows from its arguments and
// one dated table.
//
// The table is embedded ([Default]), can be replaced ([Load]) and can be patched
// with an override file ([LoadOverride], [Table.Merge]). Every row of it carries
// a [Confidence]. Two rules hold everywhere:
//
//   - what the table does not have is unknown, which is at most a warning;
//   - what contradicts a row is an error, unless that row is only [Inferred],
//     which makes it a warning.
//
// A [Table] is immutable and safe for concurrent use.
package compat
