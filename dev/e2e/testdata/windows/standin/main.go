// Command standin stands for programs of Visual Studio and CUDA: it is what its file is called, cl,
// link, nvcc or vswhere. It refuses arguments and environments that the real one would not get
// from a correct caller, and lets MinGW's compiler, behind dev/e2e/testdata/windows/bridge, do the work.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const compiler = "x86_64-w64-mingw32ucrt-g++"

func main() {
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	args := os.Args[1:]
	var files []string
	for _, arg := range args {
		if name, ok := strings.CutPrefix(arg, "@"); ok { // a response file, one argument a line
			text, err := os.ReadFile(name)
			if err != nil {
				fail(err)
			}
			for line := range strings.FieldsFuncSeq(string(text), func(c rune) bool { return c == '\n' || c == '\r' }) {
				files = append(files, strings.Trim(strings.ReplaceAll(line, `"`, ""), " "))
			}
			continue
		}
		files = append(files, arg)
	}
	args = files
	switch name := strings.TrimSuffix(strings.ToLower(filepath.Base(self)), ".exe"); name {
	case "cl":
		err = cl(self, args)
	case "link":
		err = link(args)
	case "nvcc":
		err = nvcc(self, args)
	case "vswhere":
		err = vswhere(self, args)
	default:
		err = errors.New(name + " stands for nothing")
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "standin: %v\nstandin: arguments: %q\n", err, os.Args)
	os.Exit(99)
}

// version is that of the toolset or toolkit in a path, as 14.39.33519 or 12.4.
func version(self, after string) string {
	_, rest, _ := strings.Cut(strings.ToLower(self), after)
	v, _, _ := strings.Cut(rest, `\`)
	return v
}

// developer checks what vcvarsall.bat has to have set.
func developer(names ...string) error {
	for _, name := range names {
		if !strings.Contains(os.Getenv(name), `standins`) {
			return fmt.Errorf("%s is %q: the environment is not that of vcvarsall.bat", name, os.Getenv(name))
		}
	}
	return nil
}

// cl compiles one file.
func cl(self string, args []string) error {
	if len(args) == 0 {
		fmt.Fprintf(os.Stderr, "Microsoft (R) C/C++ Optimizing Compiler Version 19%s for x64\nCopyright (C) Microsoft Corporation.  All rights reserved.\n\nusage: cl [ option... ] filename...\n", strings.TrimPrefix(version(self, `\msvc\`), "14"))
		return nil
	}
	if err := developer("INCLUDE", "LIB"); err != nil {
		return err
	}
	argv := []string{compiler, "-c"}
	source, deps, language := "", "", ""
	ignored := []string{"/c", "-c", "/nologo", "/GL", "/W3", "/MD", "/EHsc", "/Zc:__cplusplus", "/utf-8", "/bigobj", "/permissive-", "/wd4819", "/wd4251", "/wd4244", "/wd4267", "/wd4275", "/wd4018", "/wd4190", "/wd4624", "/wd4067", "/wd4068", "/external:W0", "/O2", "/Ox", "-O2", "/showIncludes"}
	object := ""
	for i := 0; i < len(args); i++ {
		a := args[i]
		flag := strings.Replace(a, "-", "/", 1)
		switch {
		case slices.Contains(ignored, a):
			if a == "/O2" {
				argv = append(argv, "-O2")
			}
		case strings.HasPrefix(flag, "/Tp"), strings.HasPrefix(flag, "/Tc"):
			source, language = a[3:], map[byte]string{'p': "c++", 'c': "c"}[a[2]]
		case strings.HasPrefix(flag, "/Fo"):
			object = strings.TrimPrefix(a[3:], ":")
		case strings.HasPrefix(flag, "/D"):
			argv = append(argv, "-D"+a[2:])
		case strings.HasPrefix(flag, "/I"):
			argv = append(argv, "-I\x01"+a[2:])
		case flag == "/external:I":
			i++
			argv = append(argv, "-isystem", "\x01"+args[i])
		case strings.HasPrefix(flag, "/external:I"):
			argv = append(argv, "-isystem", "\x01"+a[len("/external:I"):])
		case strings.HasPrefix(flag, "/std:"):
			if strings.HasPrefix(flag, "/std:c++") {
				argv = append(argv, "-std="+strings.Replace(a[5:], "c++", "gnu++", 1))
			}
		case flag == "/sourceDependencies":
			i++
			deps = args[i]
		case strings.HasPrefix(flag, "/"):
			return fmt.Errorf("%s: cl stand-in does not know this option", a)
		default:
			source = a
		}
	}
	if source == "" || object == "" {
		return errors.New("cl: no source or no object")
	}
	if language == "" {
		language = map[string]string{".c": "c"}[strings.ToLower(filepath.Ext(source))]
	}
	if language == "c" {
		argv[0] = "x86_64-w64-mingw32ucrt-gcc"
	}
	fmt.Println(filepath.Base(source)) // as cl does
	argv = append(argv, "-o", "\x01"+object, "\x01"+source)
	if deps == "" {
		return ask(argv)
	}
	// The list of headers is asked for on its own, since the real cl writes it in a form of its own.
	list := object + ".list"
	if err := ask(append(argv, "-MMD", "-MF", "\x01"+list)); err != nil {
		return err
	}
	includes, err := included(list)
	if err != nil {
		return err
	}
	document := map[string]any{"Version": "1.2", "Data": map[string]any{"Source": source, "ProvidedModule": "", "Includes": includes}}
	out, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(deps, out, 0o666)
}

// included reads what the real compiler read besides the source, and removes its list.
func included(list string) ([]string, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	const blank = "\x02"
	_, names, _ := strings.Cut(strings.NewReplacer("\\\n", " ", `\ `, blank).Replace(string(text)), ": ")
	files := []string{}
	for i, name := range strings.Fields(names) {
		if i > 0 {
			files = append(files, inside(strings.ReplaceAll(name, blank, " ")))
		}
	}
	return files, os.Remove(list)
}

// inside is a path of the real compiler as Windows has it.
func inside(name string) string {
	if i := strings.Index(name, "/dosdevices/"); i >= 0 {
		return strings.ReplaceAll(name[i+len("/dosdevices/"):], "/", `\`)
	}
	return "Z:" + strings.ReplaceAll(name, "/", `\`)
}

// link links a DLL.
func link(args []string) error {
	if err := developer("LIB"); err != nil {
		return err
	}
	argv := []string{compiler, "-shared", "-static"}
	var objects, dirs, libraries []string
	output, brepro := "", strings.Contains(os.Getenv("_LINK_"), "/Brepro")
	for _, a := range args {
		upper := strings.ToUpper(strings.Replace(a, "-", "/", 1))
		switch {
		case slices.Contains([]string{"/NOLOGO", "/INCREMENTAL:NO", "/LTCG", "/DLL", "/MANIFEST:EMBED,ID=2", "/MANIFESTUAC:NO"}, upper), strings.HasPrefix(upper, "/EXPORT:"), strings.HasPrefix(upper, "/IMPLIB:"):
		case upper == "/BREPRO":
			brepro = true
		case strings.HasPrefix(upper, "/LIBPATH:"):
			dirs = append(dirs, strings.Trim(a[9:], `"`))
		case strings.HasPrefix(upper, "/OUT:"):
			output = a[5:]
		case strings.HasPrefix(a, "/"):
			return fmt.Errorf("%s: link stand-in does not know this option", a)
		case strings.HasSuffix(strings.ToLower(a), ".lib"):
			libraries = append(libraries, a)
		default:
			objects = append(objects, "\x01"+a)
		}
	}
	if output == "" || len(objects) == 0 {
		return errors.New("link: no output or no objects")
	}
	if !brepro {
		return errors.New("link: without /Brepro the time gets into the file")
	}
	// pyconfig.h names this library for the real compiler.
	libraries = append(libraries, "python313.lib")
	argv = append(append(argv, "-Wl,--no-insert-timestamp", "-s", "-o", "\x01"+output), objects...)
	for _, name := range libraries {
		found := ""
		for _, dir := range append(dirs, strings.Split(os.Getenv("LIB"), ";")...) {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil && found == "" {
				found = filepath.Join(dir, name)
			}
		}
		if found == "" {
			fmt.Printf("LINK : fatal error LNK1104: cannot open file '%s'\n", name)
			os.Exit(1104 & 0xff)
		}
		if info, err := os.Stat(found); err == nil && info.Size() > 0 { // an empty one is in the compiler anyway
			argv = append(argv, "\x01"+found)
		}
	}
	return ask(argv)
}

// nvcc compiles a file of plain C++ as if it had kernels.
func nvcc(self string, args []string) error {
	release := strings.TrimPrefix(version(self, `\cuda\`), "v")
	if parts := strings.Split(version(self, `\cuda-`), "."); len(parts) > 1 { // put together by kiln workflow cuda
		release = parts[0] + "." + parts[1]
	}
	if slices.Contains(args, "--version") {
		fmt.Printf("nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release %s, V%s.131\n", release, release)
		return nil
	}
	if slices.Contains(args, "--list-gpu-code") {
		fmt.Print("sm_60\nsm_61\nsm_70\nsm_75\nsm_80\nsm_86\nsm_89\nsm_90\n")
		if release == "12.8" {
			fmt.Print("sm_100\nsm_120\n")
		}
		return nil
	}
	if err := developer("INCLUDE", "LIB"); err != nil {
		return err
	}
	argv := []string{compiler, "-c", "-x", "c++"}
	ccbin, deps := "", ""
	for i := 0; i < len(args); i++ {
		a := args[i]
		next := func() string {
			i++
			if i < len(args) {
				return args[i]
			}
			return ""
		}
		switch {
		case a == "--generate-dependencies-with-compile":
			argv = append(argv, "-MMD")
		case a == "--dependency-output":
			deps = next()
			argv = append(argv, "-MF", "\x01"+deps+".list")
		case a == "-Xcudafe":
			if v := next(); !strings.HasPrefix(v, "--diag_suppress=") {
				return fmt.Errorf("nvcc: -Xcudafe %s", v)
			}
		case a == "-c", a == "-O3", a == "--expt-relaxed-constexpr", strings.HasPrefix(a, "-gencode"), strings.HasPrefix(a, "--threads="), a == "--use-local-env":
			if a == "-gencode" {
				next()
			}
		case a == "-ccbin":
			ccbin = next()
		case strings.HasPrefix(a, "-ccbin="):
			ccbin = a[len("-ccbin="):]
		case a == "-Xcompiler", a == "--compiler-options":
			if v := next(); strings.Contains(v, "-fPIC") {
				return errors.New("nvcc: -fPIC is not for cl")
			}
		case strings.HasPrefix(a, "-std="):
			argv = append(argv, "-std=gnu"+a[len("-std=c"):])
		case strings.HasPrefix(a, "-D"):
			argv = append(argv, a)
		case strings.HasPrefix(a, "-I"):
			argv = append(argv, "-I\x01"+a[2:])
		case a == "-isystem":
			argv = append(argv, "-isystem", "\x01"+next())
		case a == "-o":
			argv = append(argv, "-o", "\x01"+next())
		case a == "-MD":
			argv = append(argv, "-MMD")
		case a == "-MF":
			deps = next()
			argv = append(argv, "-MF", "\x01"+deps+".list")
		case strings.HasPrefix(a, "-"):
			return fmt.Errorf("%s: nvcc stand-in does not know this option", a)
		default:
			argv = append(argv, "\x01"+a)
		}
	}
	if ccbin != "" {
		if info, err := os.Stat(ccbin); err != nil {
			return fmt.Errorf("nvcc: -ccbin %s: %w", ccbin, err)
		} else if info.IsDir() {
			ccbin = filepath.Join(ccbin, "cl.exe")
		}
		if _, err := os.Stat(ccbin); err != nil || !strings.EqualFold(filepath.Base(ccbin), "cl.exe") {
			return fmt.Errorf("nvcc: -ccbin names no cl.exe: %s", ccbin)
		}
	}
	if err := ask(argv); err != nil || deps == "" {
		return err
	}
	files, err := included(deps + ".list")
	if err != nil {
		return err
	}
	rule := "module.obj :"
	for _, f := range files {
		rule += " \\\n " + strings.ReplaceAll(f, " ", `\ `)
	}
	return os.WriteFile(deps, []byte(rule+"\n"), 0o666)
}

func vswhere(self string, args []string) error {
	for _, want := range []string{"-latest", "-prerelease", "-products", "*", "-requires", "-property", "installationPath", "-utf8"} {
		if !slices.Contains(args, want) {
			return fmt.Errorf("vswhere: %s is missing", want)
		}
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(self), "vswhere.txt"))
	_, _ = os.Stdout.Write(text)
	return err
}

// ask lets the real compiler run.
func ask(argv []string) error {
	address, err := os.ReadFile(`C:\standins\address`)
	if err != nil {
		return err
	}
	conn, err := net.Dial("tcp", string(address))
	if err != nil {
		return err
	}
	defer conn.Close()
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]any{"Argv": argv, "Dir": dir})
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return err
	}
	text, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return err
	}
	var reply struct {
		Output string
		Code   int
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return err
	}
	fmt.Print(reply.Output)
	if reply.Code != 0 {
		os.Exit(min(max(reply.Code, 1), 98))
	}
	return nil
}
