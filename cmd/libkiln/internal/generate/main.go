// Command generate makes the C header of libkiln and its Python declarations from the one place
// where the ABI is written: the Go file with the exported functions.
package main

//go:generate go run . -source ../../abi.go -header ../../kiln.h -python ../../../../python/kiln/_abi.py

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"regexp"
	"strings"
)

func main() {
	log.SetFlags(0)
	source := flag.String("source", "abi.go", "file with the exported functions")
	header := flag.String("header", "", "C header to write")
	python := flag.String("python", "", "Python module to write")
	flag.Parse()
	text, err := os.ReadFile(*source)
	if err != nil {
		log.Fatal(err)
	}
	a, err := parse(text)
	if err != nil {
		log.Fatalf("%s: %v", *source, err)
	}
	for name, data := range map[string][]byte{*header: a.header(), *python: a.python()} {
		if name == "" {
			continue
		}
		if err := os.WriteFile(name, data, 0o666); err != nil {
			log.Fatal(err)
		}
	}
}

// abi is what the Go file declares.
type abi struct {
	version   string
	types     string // C
	constants []constant
	structs   []structure
	functions []function
}

type constant struct{ name, value string }

type structure struct {
	name   string
	fields []field
}

// field is also a parameter of a function.
type field struct {
	name, kind string // kind is the C type
	count      string // of an array, else ""
}

type function struct {
	name, doc string
	params    []field
}

var (
	constantLine = regexp.MustCompile(`^\t(KILN_\w+) = (-?\d+),`)
	structLine   = regexp.MustCompile(`^typedef struct (\w+) \{$`)
	fieldLine    = regexp.MustCompile(`^\t((?:const )?\w+)( \*| )(\w+)(?:\[(\d+)\])?;`)
	versionLine  = regexp.MustCompile(`(?m)^const abiVersion = (\d+)$`)
)

// parse reads the Go file.
func parse(text []byte) (abi, error) {
	var a abi
	v := versionLine.FindSubmatch(text)
	if v == nil {
		return a, fmt.Errorf("no abiVersion")
	}
	a.version = string(v[1])
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ParseComments)
	if err != nil {
		return a, err
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			if d.Tok == token.IMPORT && d.Doc != nil && d.Specs[0].(*ast.ImportSpec).Path.Value == `"C"` {
				if err := a.readTypes(d.Doc.List[len(d.Doc.List)-1].Text); err != nil {
					return a, err
				}
			}
		case *ast.FuncDecl:
			if exported(d) {
				f, err := readFunction(d)
				if err != nil {
					return a, fmt.Errorf("%v: %w", files.Position(d.Pos()), err)
				}
				a.functions = append(a.functions, f)
			}
		}
	}
	if len(a.structs) == 0 || len(a.functions) == 0 {
		return a, fmt.Errorf("%d structures and %d functions", len(a.structs), len(a.functions))
	}
	return a, nil
}

// readTypes reads the comment above import "C".
func (a *abi) readTypes(comment string) error {
	comment = strings.TrimSuffix(strings.TrimPrefix(comment, "/*"), "*/")
	var kept []string
	var open *structure
	for line := range strings.Lines(comment) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue // includes and flags of cgo
		}
		kept = append(kept, line)
		switch {
		case constantLine.MatchString(line):
			m := constantLine.FindStringSubmatch(line)
			a.constants = append(a.constants, constant{m[1], m[2]})
		case structLine.MatchString(line):
			open = &structure{name: structLine.FindStringSubmatch(line)[1]}
		case strings.HasPrefix(line, "}") && open != nil:
			a.structs = append(a.structs, *open)
			open = nil
		case open != nil:
			m := fieldLine.FindStringSubmatch(line)
			if m == nil {
				return fmt.Errorf("structure %s: cannot read %q", open.name, line)
			}
			open.fields = append(open.fields, field{m[3], m[1] + strings.TrimRight(m[2], " "), m[4]})
		}
	}
	a.types = strings.TrimSpace(strings.Join(kept, "\n")) + "\n"
	return nil
}

func exported(d *ast.FuncDecl) bool {
	if d.Doc == nil {
		return false
	}
	for _, c := range d.Doc.List {
		if c.Text == "//export "+d.Name.Name {
			return true
		}
	}
	return false
}

// readFunction converts a declaration. A pointer is to constant data unless its name says that it
// is for output.
func readFunction(d *ast.FuncDecl) (function, error) {
	f := function{name: d.Name.Name, doc: strings.TrimSpace(d.Doc.Text())}
	if r := d.Type.Results; r == nil || len(r.List) != 1 || cType(r.List[0].Type) != "int32_t" {
		return f, fmt.Errorf("%s: the result must be int32_t", f.name)
	}
	for _, p := range d.Type.Params.List {
		kind := cType(p.Type)
		if kind == "" {
			return f, fmt.Errorf("%s: parameter of a type without a C name", f.name)
		}
		for _, name := range p.Names {
			k := kind
			if strings.HasSuffix(k, "*") && name.Name != "out" && name.Name != "stream" {
				k = "const " + k
			}
			f.params = append(f.params, field{name: name.Name, kind: k})
		}
	}
	return f, nil
}

// cType returns the C type of a Go type, "" if there is none.
func cType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		if t := cType(e.X); t != "" {
			return t + " *"
		}
	case *ast.SelectorExpr:
		pkg, ok := e.X.(*ast.Ident)
		switch {
		case ok && pkg.Name == "C":
			return e.Sel.Name
		case ok && pkg.Name == "unsafe" && e.Sel.Name == "Pointer":
			return "void *"
		}
	}
	return ""
}

const notice = "Code generated by cmd/libkiln/internal/generate from cmd/libkiln/abi.go. DO NOT EDIT."

func (a abi) header() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `// %s
//
// libkiln: products with quantized matrices (EXL2, GPTQ) on the CPU and on NVIDIA GPUs. Functions
// may be called by several threads at once. They return kiln_status, kiln_abi_version excepted.

#ifndef KILN_H
#define KILN_H

#include <stdint.h>

#define KILN_ABI_VERSION %s

#ifdef __cplusplus
extern "C" {
#endif

%s`, notice, a.version, a.types)
	for _, f := range a.functions {
		b.WriteString("\n")
		for line := range strings.Lines(f.doc) {
			b.WriteString(strings.TrimRight("// "+line, " \n") + "\n")
		}
		params := make([]string, len(f.params))
		for i, p := range f.params {
			params[i] = p.kind + " " + p.name
			if strings.HasSuffix(p.kind, "*") {
				params[i] = p.kind + p.name
			}
		}
		if len(params) == 0 {
			params = []string{"void"}
		}
		fmt.Fprintf(&b, "int32_t %s(%s);\n", f.name, strings.Join(params, ", "))
	}
	b.WriteString("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n")
	return b.Bytes()
}

// pythonType returns the ctypes name of a C type.
func (a abi) pythonType(kind string) string {
	kind = strings.TrimPrefix(kind, "const ")
	base, pointer := strings.CutSuffix(kind, "*")
	base = strings.TrimSpace(base)
	switch {
	case pointer && base == "void":
		return "c_void_p"
	case pointer && base == "char":
		return "c_char_p"
	case pointer:
		return "POINTER(" + a.pythonType(base) + ")"
	}
	switch base {
	case "int32_t", "int64_t", "uint32_t", "uint64_t":
		return "c_" + strings.TrimSuffix(base, "_t")
	case "float", "double", "char":
		return "c_" + base
	case "kiln_matrix":
		return "c_uint64"
	}
	return base
}

func (a abi) python() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# %s
"""The C interface of libkiln for ctypes."""

from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p

ABI_VERSION = %s

`, notice, a.version)
	for _, c := range a.constants {
		fmt.Fprintf(&b, "%s = %s\n", strings.TrimPrefix(c.name, "KILN_"), c.value)
	}
	for _, s := range a.structs {
		fmt.Fprintf(&b, "\n\nclass %s(Structure):\n    _fields_ = [\n", s.name)
		for _, f := range s.fields {
			kind := a.pythonType(f.kind)
			if f.count != "" {
				kind += " * " + f.count
			}
			fmt.Fprintf(&b, "        (%q, %s),\n", f.name, kind)
		}
		b.WriteString("    ]\n")
	}
	b.WriteString("\n\ndef declare(lib):\n    \"\"\"Tell ctypes what the functions take.\"\"\"\n")
	for _, f := range a.functions {
		kinds := make([]string, len(f.params))
		for i, p := range f.params {
			kinds[i] = a.pythonType(p.kind)
		}
		fmt.Fprintf(&b, "    lib.%s.restype = c_int32\n    lib.%s.argtypes = [%s]\n", f.name, f.name, strings.Join(kinds, ", "))
	}
	return b.Bytes()
}
