package diag

import "strings"

// Suggest returns the known word that the given one was probably meant to be, or
// "" if none is near enough: at most a third of the letters, and never more than
// three, may differ. Case does not count as a difference. A word that differs in its
// numbers alone is another thing, not a mistake: 26.04 is not meant to be 22.04.
func Suggest(word string, known []string) string {
	best, bestDistance := "", 1+min(3, max(1, len(word)/3))
	lower := strings.ToLower(word)
	for _, k := range known {
		// A long stranger can't win, and must not cost a table of its size.
		if diff := len(k) - len(word); diff >= bestDistance || -diff >= bestDistance || len(k) > 64 {
			continue
		}
		if d := distance(lower, strings.ToLower(k)); d < bestDistance && (d == 0 || letters(lower) != letters(strings.ToLower(k))) {
			best, bestDistance = k, d
		}
	}
	return best
}

// letters returns the word without its digits.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, s)
}

// DidYouMean returns `; did you mean "x"?` for the nearest known word, or "".
func DidYouMean(word string, known []string) string {
	if s := Suggest(word, known); s != "" {
		return `; did you mean "` + s + `"?`
	}
	return ""
}

// distance counts insertions, deletions, replacements and swaps of neighbours
// (optimal string alignment) over bytes, which is enough for identifiers.
func distance(a, b string) int {
	two, one, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(one[j]+1, cur[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], two[j-2]+1)
			}
		}
		two, one, cur = one, cur, two
	}
	return one[len(b)]
}
