package matrix

// SplitWords is the splitting of build_args, for the tests that compare it with
// reference programs.
var SplitWords = splitWords
