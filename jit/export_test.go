package jit

// For fuzzing and tables of what no exported function shows.
var (
	FindPybind = findPybind
	ShellLine  = shellLine
)

// StatLine writes a line of a remembered answer and reads it again; ok says that the two are the
// same.
func StatLine(line string) (again string, ok bool) {
	s, ok := parseStat(line)
	if !ok {
		return "", false
	}
	return string(s.append(nil)), true
}
