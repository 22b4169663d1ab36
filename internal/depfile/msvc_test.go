package depfile_test

import (
	"slices"
	"testing"

	"github.com/kiln-build/kiln/internal/depfile"
)

func FuzzParseMSVC(f *testing.F) {
	const text = `{"Version": "1.2", "Data": {"Source": "c:\\a b\\m.cpp", "ProvidedModule": "", "Includes": ["c:\\a b\\m.h", "c:\\ä.h"], "ImportedModules": []}}`
	if got, err := depfile.ParseMSVC([]byte(text)); err != nil || !slices.Equal(got, []string{`c:\a b\m.h`, `c:\ä.h`}) {
		f.Errorf("%q, %v", got, err)
	}
	f.Add([]byte(text))
	f.Add([]byte(`{"Data": null}`))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = depfile.ParseMSVC(text) })
}
