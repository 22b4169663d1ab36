package matrix

// SplitWords is the splitting of build_args, for the tests that compare it with
// reference programs.
func SplitWords(line string) ([]string, error) {
	words, err := splitWords(line)
	return wordTexts(words), err
}
