// Package wheel is kiln's vocabulary of Python packaging: project names,
// versions, specifiers, tags and file names, and the files inside a wheel.
//
// The naming half reads and writes text only:
//
//   - [NormalizeName] and [FileName]: project names (PEP 503, PEP 625)
//   - [Version], [SpecifierSet]: versions and their ordering (PEP 440)
//   - [Filename], [SdistName]: names of distributions (PEP 427, PEP 625)
//   - [Tag], [SupportedTags]: compatibility of a wheel and a machine (PEP 425,
//     PEP 600, PEP 656)
//   - [Requirement]: dependencies (PEP 508)
//
// It behaves as the reference implementation, the Python library packaging
// 26.3, does; a corpus made by that library is part of the tests. Where kiln is
// stricter, because names become paths, URLs and HTML, the corpus lists the
// case and the reason.
//
// The other half reads archives: [Reader] opens, checks and rewrites wheels (PEP 427), and
// [ReadSdist] checks source distributions (PEP 625, PEP 721).
//
// All parsers take foreign text: they never panic, run in linear time, and
// return errors that name the text and what is wrong with it. All values are
// immutable and safe for concurrent use.
//
// The package does not resolve dependencies, evaluate markers, or look at the
// machine it runs on. It imports the standard library only.
package wheel
