package machine

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// A CompilerError is one error of a compiler, assembler or linker.
type CompilerError struct {
	File    string // as the tool wrote it; "" if it names none
	Line    int    // 0 if unknown
	Message string
	Text    string // the whole line
	Count   int    // how often it was printed: nvcc repeats an error for every arch
}

// CompilerErrors are the real errors in the output of a build, reduced from what may
// be thousands of lines.
type CompilerErrors struct {
	First []CompilerError // the first different ones, in order
	Total int             // all, repetitions included
	Files int             // how many files have errors
}

// errorForms are the ways in which compilers say it. What comes after the first error
// of a file (notes, "in instantiation of", the command that failed) is not an error.
// They are compiled on first use.
var errorForms = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		// gcc, clang, hipcc
		regexp.MustCompile(`^(?P<file>[^\s:'"][^:'"]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<msg>.+)`),
		// nvcc's front end, and cl
		regexp.MustCompile(`^\s*(?P<file>[^\s(][^(]*)\((?P<line>\d+)(?:,\d+)?\)\s?: (?:catastrophic |fatal )?error(?: [#\w-]+)?: (?P<msg>.+)`),
		// preprocessor directives of old compilers
		regexp.MustCompile(`^(?P<file>[^\s:]+):(?P<line>\d+):\d+: error: (?P<msg>#error.*)`),
		// linkers
		regexp.MustCompile(`^(?:\S*ld(?:\.\w+)?: )?(?P<file>[^\s:]+\.(?:o|a|so|obj|cpp|cc|cu|c)\b[^\s:]*):.*(?P<msg>(?:undefined reference to|multiple definition of) .+)`),
		regexp.MustCompile(`^\S*ld(?:\.\w+)?: (?P<msg>(?:error: |cannot find |undefined symbol).+)`),
		regexp.MustCompile(`^(?P<file>\S+)? ?: (?:fatal )?error LNK\d+: (?P<msg>.+)`),
		// nvcc itself and its parts
		regexp.MustCompile(`^(?:nvcc|ptxas|nvlink|fatbinary|cudafe\+\+)\s+(?:fatal|error)\s*: (?P<msg>.+)`),
		regexp.MustCompile(`^ptxas (?P<file>[^\s,]+), line (?P<line>\d+); (?:error|fatal)\s*: (?P<msg>.+)`),
		regexp.MustCompile(`^nvcc error\s*: (?P<msg>.+)`),
		// the driver program: missing parts, missing inputs
		regexp.MustCompile(`^(?:\S*(?:g\+\+|gcc|cc1plus|c\+\+|clang\+\+|clang|hipcc)(?:-\d+)?): (?:fatal )?error: (?P<msg>.+)`),
	}
})

// FindCompilerErrors reads the output of a build. It keeps the first max different
// errors; max <= 0 means five.
func FindCompilerErrors(lines []string, max int) CompilerErrors {
	if max <= 0 {
		max = 5
	}
	var out CompilerErrors
	files := map[string]bool{}
	seen := map[string]int{} // index in First, or -1
	for _, line := range lines {
		if !strings.Contains(line, "error") && !strings.Contains(line, "fatal") && !strings.Contains(line, "undefined reference") &&
			!strings.Contains(line, "cannot find") && !strings.Contains(line, "multiple definition") {
			continue
		}
		e, ok := parseError(line)
		if !ok {
			continue
		}
		out.Total++
		if e.File != "" {
			files[e.File] = true
		}
		key := e.File + "\x00" + strconv.Itoa(e.Line) + "\x00" + e.Message
		i, known := seen[key]
		switch {
		case known && i >= 0:
			out.First[i].Count++
		case !known && len(out.First) < max:
			seen[key] = len(out.First)
			out.First = append(out.First, e)
		case !known:
			seen[key] = -1
		}
	}
	out.Files = len(files)
	return out
}

func parseError(line string) (CompilerError, bool) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	for _, re := range errorForms() {
		m := re.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		e := CompilerError{Text: strings.TrimSpace(line), Count: 1}
		for i, name := range re.SubexpNames() {
			switch name {
			case "file":
				e.File = m[i]
			case "line":
				e.Line, _ = strconv.Atoi(m[i]) // digits; too many give 0, unknown
			case "msg":
				e.Message = strings.TrimSpace(m[i])
			}
		}
		return e, true
	}
	return CompilerError{}, false
}
