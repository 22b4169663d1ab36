package main

import (
	"fmt"
	"strings"
	"time"
)

// command is what "kiln commands" prints.
type command struct {
	Name, Use, Short, Long, Example string
	Flags                           []struct{ Name, Shorthand, Value, Usage, Default string }
	Commands                        []command
}

// manPages adds the man page of every command, by its path below share.
func manPages(c command, version string, date time.Time, files map[string][]byte) {
	name := strings.ReplaceAll(c.Name, " ", "-")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 %q %q\n", strings.ToUpper(name), date.Format(time.DateOnly), "kiln "+version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n", name, roff(c.Short), roff(c.Use))
	b.WriteString(".SH DESCRIPTION\n")
	if c.Long == "" {
		c.Long = c.Short + "."
	}
	for i, paragraph := range strings.Split(strings.TrimSpace(c.Long), "\n\n") {
		switch {
		case strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n "):
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
			continue
		case i > 0:
			b.WriteString(".PP\n")
		}
		b.WriteString(roff(paragraph) + "\n")
	}
	if len(c.Flags) > 0 {
		b.WriteString(".SH OPTIONS\n")
	}
	for _, f := range c.Flags {
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(&b, "\\fB\\-%s\\fR, ", f.Shorthand)
		}
		fmt.Fprintf(&b, "\\fB\\-\\-%s\\fR", roff(f.Name))
		if f.Value != "" {
			fmt.Fprintf(&b, " \\fI%s\\fR", roff(f.Value))
		}
		usage := f.Usage
		if f.Default != "" && !strings.Contains(usage, "(default") {
			usage += " (default " + f.Default + ")"
		}
		fmt.Fprintf(&b, "\n%s\n", roff(usage))
	}
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	if len(c.Commands) > 0 {
		b.WriteString(".SH COMMANDS\n")
	}
	for _, sub := range c.Commands {
		fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(strings.ReplaceAll(sub.Name, " ", "-")), roff(sub.Short))
		manPages(sub, version, date, files)
	}
	files["man/man1/"+name+".1"] = []byte(b.String())
}

// roff escapes a text: backslashes, hyphens that must stay hyphens, and lines that begin with what
// would be a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
