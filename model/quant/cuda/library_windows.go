package cuda

import "golang.org/x/sys/windows"

func blasLibraries() []string {
	return []string{"cublas64_13.dll", "cublas64_12.dll", "cublas64_11.dll"}
}

func compilerLibraries() []string {
	return []string{"nvrtc64_130_0.dll", "nvrtc64_120_0.dll"}
}

// compilerParts are what NVRTC loads itself.
const compilerParts = "nvrtc-builtins64_*.dll"

func openLibrary(name string) (uintptr, error) {
	lib, err := windows.LoadLibrary(name)
	return uintptr(lib), err
}

// loadedLibrary returns a library that the process has loaded already.
func loadedLibrary(name string) (uintptr, error) {
	wide, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	var lib windows.Handle
	err = windows.GetModuleHandleEx(0, wide, &lib)
	return uintptr(lib), err
}

func findSymbol(lib uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(lib), name)
}
