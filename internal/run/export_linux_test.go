package run

import "os"

// What tests look at from outside.
var (
	Descendants = descendants
	TreeMemory  = treeMemory
)

// DescendantsByParent is the slow way of Descendants.
func DescendantsByParent() []int { return fromParents(os.Getpid()) }
