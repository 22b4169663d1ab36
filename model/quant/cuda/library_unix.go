//go:build unix

package cuda

import "github.com/ebitengine/purego"

func blasLibraries() []string {
	return []string{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}
}

func compilerLibraries() []string {
	return []string{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}
}

// compilerParts are what NVRTC loads itself. Packages have a second set of another name beside it,
// which it does not need.
const compilerParts = "libnvrtc-builtins.so*"

func openLibrary(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// loadedLibrary returns a library that the process has loaded already.
func loadedLibrary(name string) (uintptr, error) {
	const noLoad = 4 // RTLD_NOLOAD of Linux
	return purego.Dlopen(name, purego.RTLD_NOW|noLoad)
}

func findSymbol(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }
