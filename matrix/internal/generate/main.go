// Command generate writes what users read about packages.yml, the JSON Schema and
// the reference manual, from the types in matrix/document.go and their comments.
//
// Keys, types, required keys, choices, descriptions and examples are read from the
// source of package matrix; rows, file names and values in the manual are planned by
// it. What is written by hand is in rules.go (how a value is spelled, which the types
// do not say) and in packages-yml.md.tmpl (prose). A rule about a key that does not
// exist, or a key that has no comment, stops the program.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", "..", "the root `folder` of the module")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the files to write, by their path below root.
func generate(root string) (map[string][]byte, error) {
	src, err := readSource(filepath.Join(root, "matrix"))
	if err != nil {
		return nil, err
	}
	schema, err := makeSchema(src)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	manual, err := makeManual(src, root)
	if err != nil {
		return nil, fmt.Errorf("manual: %w", err)
	}
	return map[string][]byte{
		"matrix/schema/packages.schema.json": schema,
		"docs/packages-yml.md":               manual,
	}, nil
}
