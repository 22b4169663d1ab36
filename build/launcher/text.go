package launcher

// These do what the functions of package strings with their names do. That package is initialized after half of the program, and with it would
// be this one; see init.

func hasPrefix(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

func hasSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && s[len(s)-len(suffix):] == suffix
}

func cutPrefix(s, prefix string) (string, bool) {
	if !hasPrefix(s, prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

func cutSuffix(s, suffix string) (string, bool) {
	if !hasSuffix(s, suffix) {
		return s, false
	}
	return s[:len(s)-len(suffix)], true
}

func trimSuffix(s, suffix string) string {
	s, _ = cutSuffix(s, suffix)
	return s
}

func index(s, part string) int {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return i
		}
	}
	return -1
}

func contains(s, part string) bool { return index(s, part) >= 0 }

func cut(s, separator string) (before, after string, found bool) {
	if i := index(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}

// split is for separators that are not empty.
func split(s, separator string) []string {
	var out []string
	for {
		before, after, found := cut(s, separator)
		out = append(out, before)
		if !found {
			return out
		}
		s = after
	}
}

func join(parts []string, separator string) string {
	var out []byte
	for i, part := range parts {
		if i > 0 {
			out = append(out, separator...)
		}
		out = append(out, part...)
	}
	return string(out)
}

// replaceAll is for parts that are not empty.
func replaceAll(s, part, by string) string {
	if !contains(s, part) {
		return s
	}
	return join(split(s, part), by)
}

// consistsOf reports whether a text has no other bytes than these.
func consistsOf(s, these string) bool {
	for i := range len(s) {
		if index(these, s[i:i+1]) < 0 {
			return false
		}
	}
	return true
}
