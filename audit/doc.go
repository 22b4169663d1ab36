// Package audit says, without importing or running anything and on a machine with no GPU and no
// torch, whether a wheel will install, load and run where it claims to.
//
// It serves the question "will this load on that machine", as the command `kiln audit` and as the
// gate before a wheel is published. [Check] reads a wheel once and gives a [Report]: facts about
// each native file, and findings with stable rule ids ([Rules]), causes and fixes.
//
//   - The archive: RECORD complete and true, names and tags in agreement, nothing hostile. The
//     reading of archives is package wheel's.
//   - The platform: which glibc and libstdc++ the native files need, the oldest manylinux tag that
//     is true, libraries that must not be bundled, run paths that lead to the build machine.
//   - Python: tags of files against tags of the wheel, names outside of the stable ABI, names the
//     interpreter does not have.
//   - torch: every undefined symbol is looked up the way the dynamic loader would, in a [Snapshot]
//     of an exact torch. The snapshots of the versions on PyPI are built in, as one table, to which
//     `go run ./audit/internal/generate TORCH.whl` adds; others are taken with [TakeSnapshot] from
//     a wheel or a folder.
//   - GPUs: the targets of all embedded device code against the arch list of the row.
//
// The audit proves that a wheel will not load; that it will load it can only say as far as it knows
// the libraries. It does not resolve dependencies, and it does not look at the running machine.
package audit
