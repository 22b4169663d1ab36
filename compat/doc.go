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
// The file is one JSON map, [Format] in its "format":
//
//	date            the day it describes
//	source          remarks: where the facts of a section come from
//	torch           by series: releases, Pythons and holes, builds per toolkit with the archs
//	                inside them, what the extension builder knows, C++ standard and ABI
//	cuda            by series: releases, targets of nvcc, host compilers, drivers, default archs
//	rocm            by series: the targets of PyTorch's own builds
//	driver_minimum  by CUDA major
//	toolkits        on which systems CUDA and ROCm exist
//	os              by os name: platform tag, default compiler, glibc
//	gpu, gfx        by compute capability, by AMD target
//
// "on" and "not_on" name systems (linux, linux-arm, windows, windows-arm, macos,
// macos-intel); one in neither is unknown. "open" marks a series that may still
// get patch releases, so that a newer one is unknown instead of wrong; "partial"
// a release whose builds are not all known. compat.json in the source is the
// example to start from.
//
// A [Table] is immutable and safe for concurrent use.
package compat
