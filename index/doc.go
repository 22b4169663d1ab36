// Package index is a Python package index for builds that differ in more than a file
// name can say: one wheel per CUDA or ROCm toolkit and torch version.
//
// A [Catalog] says which files exist, where they are, and their hashes. It is shown through
// views, each of which is a complete repository for installers: one per toolkit, one per
// toolkit and torch version, /all/ with every file, and a default. In the view of one toolkit
// and torch every version of a project has at most one build, so that the order of
// local version labels, by which installers would choose, has nothing to choose from.
//
// A [Store] is an index on disk: the catalog and the pages made from it, as plain files that
// any web server or file:// URL can serve. [Store.Add] adds files and changes
// only the pages concerned; a published file name means the same bytes for ever.
//
// The formats are those of the simple repository API, version 1.4: PEP 503, 592, 629, 658,
// 691, 700, 714, 740 and 792; wheel variants (PEP 825, a draft) when asked for.
//
// The package does not upload to other hosts and does not resolve dependencies.
package index
