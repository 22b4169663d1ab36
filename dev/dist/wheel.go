package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var relativeLink = regexp.MustCompile(`\]\(([^)\s:#]+)[)#]`)

// withAddresses replaces links to files of the repository, which are not beside the page of an index.
func withAddresses(readme []byte) []byte {
	return relativeLink.ReplaceAllFunc(readme, func(link []byte) []byte {
		kind := "blob"
		if bytes.Contains(link, []byte(".svg)")) || bytes.Contains(link, []byte(".png)")) {
			kind = "raw"
		}
		return []byte("](https://github.com/kiln-build/kiln/" + kind + "/main/" + string(link[len("]("):]))
	})
}

// distribution is the name on package indexes. "kiln" is another project there.
const distribution = "kiln-build"

// module makes "python -m kiln_build", and the command kiln-build, which uvx and pipx run by the
// name of the distribution. The command kiln is the binary itself.
const module = `"""The kiln command, as a package for Python's installers."""

import os
import subprocess
import sys
import sysconfig


def binary():
    """The path of the kiln that was installed with this module."""
    name = "kiln.exe" if os.name == "nt" else "kiln"
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", os.name + "_user"),  # pip install --user
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"),  # pip install --target
    ]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError("the kiln binary is missing; install kiln-build again")


def main():
    command = [binary(), *sys.argv[1:]]
    if os.name == "nt":
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)
`

// writeWheel writes the wheel of a target. It has the binary as a script, which installers put on
// PATH as it is.
func (c *config) writeWheel(dir string, t target, binary string) error {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	name := "kiln"
	if t.os == "windows" {
		name += ".exe"
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	readme = withAddresses(readme)
	stem := strings.ReplaceAll(distribution, "-", "_")
	info := stem + "-" + c.version + ".dist-info/"
	var tags strings.Builder
	for platform := range strings.SplitSeq(t.tags, ".") {
		tags.WriteString("Tag: py3-none-" + platform + "\n")
	}
	type member struct {
		name       string
		content    []byte
		executable bool
	}
	members := []member{
		{stem + "/__init__.py", []byte(module), false},
		{stem + "/__main__.py", []byte("from kiln_build import main\n\nmain()\n"), false},
		{stem + "-" + c.version + ".data/scripts/" + name, program, true},
		{info + "METADATA", []byte("Metadata-Version: 2.4\nName: " + distribution + "\nVersion: " + c.version +
			"\nSummary: Build, ship and run GPU Python packages and quantized models\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n" +
			"Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n" + string(readme)), false},
		{info + "WHEEL", []byte("Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\n" + tags.String()), false},
		{info + "entry_points.txt", []byte("[console_scripts]\nkiln-build = kiln_build:main\n"), false},
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	members = append(members, member{info + "licenses/LICENSE", license, false})
	var record strings.Builder
	for _, m := range members {
		sum := sha256.Sum256(m.content)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", m.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(m.content))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	members = append(members, member{info + "RECORD", []byte(record.String()), false})

	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%s-py3-none-%s.whl", stem, c.version, t.tags)))
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, m := range members {
		header := &zip.FileHeader{Name: m.name, Method: zip.Deflate, Modified: c.modified}
		header.SetMode(0o644)
		if m.executable {
			header.SetMode(0o755)
		}
		w, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := w.Write(m.content); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Close()
}
