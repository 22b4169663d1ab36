package audit

import (
	"debug/pe"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// readPE reads the imports of a Windows file; false means that it is none.
func (o *object) readPE(r io.ReaderAt, size int64) (ok bool, problem error) {
	f, err := pe.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		// Two letters are not much of a magic: other files begin with MZ too.
		switch path.Ext(strings.ToLower(o.Path)) {
		case ".pyd", ".dll", ".exe":
			return true, fmt.Errorf("not a Windows library: %w", err)
		}
		return false, nil
	}
	defer f.Close()
	switch f.Machine {
	case pe.IMAGE_FILE_MACHINE_AMD64:
		o.Machine = "amd64"
	case pe.IMAGE_FILE_MACHINE_ARM64:
		o.Machine = "arm64"
	case pe.IMAGE_FILE_MACHINE_I386:
		o.Machine = "win32"
	default:
		o.Machine = fmt.Sprintf("machine %#x", f.Machine)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return true, fmt.Errorf("imports: %w", err)
	}
	for _, s := range symbols {
		name, dll, _ := strings.Cut(s, ":")
		o.imports = append(o.imports, dll+":"+name)
		if !slices.Contains(o.Needed, dll) {
			o.Needed = append(o.Needed, dll)
		}
	}
	o.Undefined = len(symbols)
	if strings.EqualFold(path.Ext(o.Path), ".pyd") {
		o.Module = moduleName(o.Path)
		o.Python = parseModuleSuffix(path.Base(o.Path)).python
	}
	return true, nil
}
