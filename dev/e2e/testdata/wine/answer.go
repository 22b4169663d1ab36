// Command answer stands for a program of Windows: it prints the text file beside it that is named
// after its first argument, or else after itself.
package main

import (
	"os"
	"path/filepath"
	"strings"
)

func main() {
	self, err := os.Executable()
	if err != nil {
		os.Exit(3)
	}
	names := []string{strings.TrimSuffix(self, filepath.Ext(self)) + ".txt"}
	if len(os.Args) > 1 {
		names = append([]string{filepath.Join(filepath.Dir(self), strings.TrimLeft(os.Args[1], "-")+".txt")}, names...)
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil {
			_, _ = os.Stdout.Write(text)
			return
		}
	}
	os.Exit(1)
}
