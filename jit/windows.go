package jit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/internal/depfile"
	"github.com/kiln-build/kiln/machine"
)

// torchMSVCFlags are those that torch's own builder gives cl.
var torchMSVCFlags = []string{"/MD", "/wd4819", "/wd4251", "/wd4244", "/wd4267", "/wd4275", "/wd4018", "/wd4190", "/wd4624", "/wd4067", "/wd4068", "/EHsc"}

// chooseMSVC takes the toolset that compiles: that of the shell, or the newest that nvcc takes.
func (p *planner) chooseMSVC() *machine.Diagnosis {
	req := machine.MSVCRequest{Table: p.opts.Table}
	if p.cuda {
		req.CUDA = p.kit().Version
	}
	found, err := machine.ChooseMSVC(p.opts.Host, p.m.MSVC, req)
	if lacks, ok := errors.AsType[*machine.MSVCError](err); ok {
		return &lacks.Diagnosis
	}
	p.msvc = &found
	return nil
}

// windowsCommands is commands for cl, link and nvcc.
func (p *planner) windowsCommands() {
	s, m := p.spec, p.m
	p.launcher = "" // compiles are not shared on Windows
	var defines, includes []string
	if s.Kind != KindProgram {
		defines = append(defines, "TORCH_EXTENSION_NAME="+s.Name)
		if s.Torch {
			defines = append(defines, "TORCH_API_INCLUDE_EXTENSION_H")
		}
	}
	for _, dir := range s.Include {
		includes = append(includes, s.path(dir))
	}
	includes = append(includes, p.systemIncludes()...)
	standard := ""
	if s.Torch {
		standard = "c++17"
		if std, ok := p.table().CXXStandard(m.Torch.Public()); ok {
			standard = "c++" + strconv.Itoa(std)
		}
	}
	for i := range p.units {
		u := &p.units[i]
		u.memory = memoryPlain
		if s.Torch {
			u.memory = memoryTorch
		}
		if u.kind == kindCUDA {
			u.memory = memoryCUDA
			u.argv = p.windowsNVCC(defines, includes, standard)
			u.flags = u.argv[1:]
			u.argv = append(u.argv, "-MD", "-MF", tokenObject+".d", "-c", tokenSource, "-o", tokenObject)
			continue
		}
		u.argv = p.cl(u.kind, defines, includes, standard)
		u.flags = u.argv[1:]
		kind := "/Tp"
		if u.kind == kindC {
			kind = "/Tc"
		}
		// What was included comes as JSON: the text that /showIncludes prints is another one in
		// every language.
		u.argv = append(u.argv, "/sourceDependencies", tokenObject+".d", "/c", kind+tokenSource, "/Fo"+tokenObject)
	}
	p.windowsLink()
}

func (p *planner) cl(kind string, defines, includes []string, standard string) []string {
	flags := p.spec.Flags.CXX
	argv := append([]string{p.msvc.CL, "/nologo"}, torchMSVCFlags...)
	for _, d := range defines {
		argv = append(argv, "/D"+d)
	}
	for _, dir := range includes {
		argv = append(argv, "/I"+dir)
	}
	if standard != "" && kind != kindC && !hasPrefix(flags, "/std:") && !hasPrefix(flags, "-std:") {
		argv = append(argv, "/std:"+standard)
	}
	if !hasPrefix(flags, "/O") && !hasPrefix(flags, "-O") {
		argv = append(argv, "/O2")
	}
	return append(argv, flags...)
}

func (p *planner) windowsNVCC(defines, includes []string, standard string) []string {
	flags := p.spec.Flags.NVCC
	argv := []string{p.kit().NVCC}
	for _, d := range defines {
		argv = append(argv, "-D"+d)
	}
	for _, dir := range includes {
		argv = append(argv, "-I"+dir)
	}
	if p.spec.Torch {
		argv = append(argv, torchNVCCFlags...)
	}
	argv = append(argv, p.archs.GencodeFlags()...)
	for _, f := range torchMSVCFlags {
		argv = append(argv, "-Xcompiler", f)
	}
	if !p.choosesHost() {
		p.ccbin = p.msvc.CL
		argv = append(argv, "-ccbin", filepath.Dir(p.msvc.CL))
	}
	if standard != "" && !hasPrefix(flags, "-std=") && !hasPrefix(flags, "--std=") {
		argv = append(argv, "-std="+standard)
	}
	if !hasPrefix(flags, "-O") {
		argv = append(argv, "-O3")
	}
	return append(argv, flags...)
}

func (p *planner) windowsLink() {
	s, m := p.spec, p.m
	argv := []string{filepath.Join(filepath.Dir(p.msvc.CL), "link.exe"), "/nologo", "/Brepro"}
	if s.Kind != KindProgram {
		argv = append(argv, "/DLL")
	}
	libraries := func(names ...string) {
		for _, name := range names {
			if !strings.HasSuffix(strings.ToLower(name), ".lib") {
				name += ".lib"
			}
			argv = append(argv, name)
		}
	}
	for _, dir := range s.LibraryDirs {
		argv = append(argv, "/LIBPATH:"+s.path(dir))
	}
	libraries(s.Libraries...)
	argv = append(argv, s.Flags.Link...)
	if s.Torch {
		argv = append(argv, "/LIBPATH:"+filepath.Join(m.Torch.Dir, "lib"))
		libraries("c10")
		if p.cuda {
			libraries("c10_cuda", "torch_cpu", "torch_cuda")
			// Nothing in a module calls it by name, and without it there are no CUDA devices.
			argv = append(argv, "-INCLUDE:?warp_size@cuda@at@@YAHXZ")
		} else {
			libraries("torch_cpu")
		}
		libraries("torch")
		if s.Kind != KindProgram {
			libraries("torch_python")
		}
	}
	if p.cuda {
		argv = append(argv, "/LIBPATH:"+filepath.Join(p.kit().Home, "lib", "x64"))
		libraries("cudart")
	}
	if s.isModule() {
		argv = append(argv, "/LIBPATH:"+filepath.Join(m.Python.BasePrefix, "libs")) // pyconfig.h names the library
	}
	p.link = append(argv, "/IMPLIB:"+tokenObject+".lib", "/OUT:"+tokenOutput)
}

// windowsModule is the file name of the result.
func (s *Spec) windowsModule(suffix string) string {
	switch s.Kind {
	case KindLibrary:
		return s.Name + ".dll"
	case KindProgram:
		return s.Name + ".exe"
	}
	return s.Name + suffix
}

// openMSVC adds the compiler's variables to an environment.
func (b *builder) openMSVC(ctx context.Context) error {
	if b.plan.msvc == nil {
		return nil
	}
	opened, err := b.plan.msvc.Open(ctx, b.opts.Host)
	if lacks, ok := errors.AsType[*machine.MSVCError](err); ok {
		return &Error{Name: b.spec.Name, Diagnoses: []machine.Diagnosis{lacks.Diagnosis}}
	}
	if err != nil {
		return err
	}
	for name, value := range opened.Env {
		b.msvcEnv = append(b.msvcEnv, name+"="+value)
	}
	slices.Sort(b.msvcEnv)
	temp := filepath.Join(b.dir, "tmp")
	b.msvcEnv = append(b.msvcEnv, "TEMP="+temp, "TMP="+temp, "VSLANG=1033")
	return nil
}

// included reads what a compiler wrote about a unit's headers.
func (p *plan) included(u unit, file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what %s includes: %w", u.source, err)
	}
	if p.msvc == nil {
		return depfile.Parse(text), nil
	}
	files := depfile.Parse(text)
	if u.kind != kindCUDA {
		if files, err = depfile.ParseMSVC(text); err != nil {
			return nil, fmt.Errorf("read what %s includes: %w", u.source, err)
		}
	}
	// cl writes paths in lower case. The project's are compared with what the plan calls them.
	root := p.spec.Root
	for i, f := range files {
		if len(f) > len(root) && strings.EqualFold(f[:len(root)], root) {
			files[i] = root + f[len(root):]
		}
	}
	return files, nil
}
