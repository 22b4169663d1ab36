package workflow_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/publish/publishtest"
	"github.com/kiln-build/kiln/workflow"
)

// testKey is the public part of a key that was made for this test, as gpg exports it.
const (
	testKey = `-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEavq4HRYJKwYBBAHaRw8BAQdAuEnoxt5z+Jqo0j5+WcY4A5XLlswLqqh405VD
e5/1eOG0IGtpbG4gdGVzdCA8dGVzdEBleGFtcGxlLmludmFsaWQ+iJAEExYIADgW
IQQ/VUwOphkylG6VPrGnkxAmY4HpKgUCavq4HQIbAwULCQgHAgYVCgkICwIEFgID
AQIeAQIXgAAKCRCnkxAmY4HpKuB+AP4lFxbbfdblXarIoEX7YAjV5a6FJ2z9zGip
aqAM11KgOwD/YW/wRea2TLeQMNq5vAwJXelACmBaPpJCEQnQ59ffhQE=
=zlUe
-----END PGP PUBLIC KEY BLOCK-----
`
	testFingerprint = "3F554C0EA61932946E953EB1A79310266381E92A"
)

// TestInstallROCm: what is fetched, checked, written and run. make e2e-jit-rocm does it with apt.
func TestInstallROCm(t *testing.T) {
	present := map[string]string{
		"/rocm/apt/6.1/dists/jammy/Release":      "Origin: repo.radeon.com\n",
		"/amdgpu/6.1/ubuntu/dists/jammy/Release": "x",
		"/rocm/rocm.gpg.key":                     testKey,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := present[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must(t, os.WriteFile(path, []byte(text), 0o777))
	}
	write("etc/os-release", "ID=ubuntu\nVERSION_CODENAME=jammy\nPRETTY_NAME=\"Ubuntu 22.04\"\n")
	var ran []string
	opts := workflow.ROCmOptions{
		Version: "6.1", Source: server.URL, Fingerprint: testFingerprint, Root: root, Retry: publishtest.QuickRetry,
		Run: func(_ context.Context, argv ...string) error {
			switch {
			case argv[0] == "install":
				text, err := os.ReadFile(argv[4])
				must(t, err)
				rel, err := filepath.Rel(root, argv[5])
				must(t, err)
				write(rel, string(text))
			case slices.Contains(argv, "rocm-hip-sdk"):
				write("opt/rocm-6.1.0/bin/hipcc", "")
				fallthrough
			default:
				ran = append(ran, strings.Join(argv, " "))
			}
			return nil
		},
	}
	home, err := workflow.InstallROCm(t.Context(), opts)
	must(t, err)
	if home != "/opt/rocm-6.1.0" || len(ran) != 2 || !strings.HasSuffix(ran[0], " update") {
		t.Errorf("home %s, ran %q", home, ran)
	}
	list, err := os.ReadFile(filepath.Join(root, "etc/apt/sources.list.d/kiln-rocm.list"))
	must(t, err)
	const signed = "deb [arch=amd64 signed-by=/etc/apt/keyrings/kiln-rocm.asc] "
	if want := signed + server.URL + "/rocm/apt/6.1 jammy main\n" + signed + server.URL + "/amdgpu/6.1/ubuntu jammy main\n"; string(list) != want {
		t.Errorf("repositories:\n%swant\n%s", list, want)
	}
	if home, err := workflow.InstallROCm(t.Context(), opts); err != nil || home != "/opt/rocm-6.1.0" || len(ran) != 2 {
		t.Errorf("again: %s, %v, ran %q", home, err, ran)
	}

	for _, tt := range []struct {
		name, want string
		change     func(o *workflow.ROCmOptions)
	}{
		{"no packages for this Ubuntu", "ROCm 5.6 for Ubuntu 22.04 (jammy)", func(o *workflow.ROCmOptions) { o.Version = "5.6" }},
		{"another key", "is " + testFingerprint + ", want CA8BB4727A47B4D09B4EE8969386B48A1A693C5C", func(o *workflow.ROCmOptions) { o.Version, o.Fingerprint = "6.1", "" }},
		{"no key", "no OpenPGP", func(*workflow.ROCmOptions) { present["/rocm/rocm.gpg.key"] = "<html>" }},
		{"another system", "for Ubuntu, and this is Debian", func(*workflow.ROCmOptions) { write("etc/os-release", "ID=debian\nPRETTY_NAME=Debian\n") }},
	} {
		must(t, os.RemoveAll(filepath.Join(root, "opt")))
		other := opts
		tt.change(&other)
		if _, err := workflow.InstallROCm(t.Context(), other); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if len(ran) != 2 {
		t.Errorf("after a mistake there ran %q", ran[2:])
	}
}

func FuzzKeyFingerprint(f *testing.F) {
	f.Add([]byte(testKey))
	f.Add([]byte{0x99, 0, 6, 4, 0, 0, 0, 0, 1})
	f.Add([]byte{0xc6, 6, 4, 0, 0, 0, 0, 1})
	binary, _ := base64.StdEncoding.DecodeString("mQENBA==")
	f.Add(binary)
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := workflow.KeyFingerprint(text); err == nil && len(got) != 40 {
			t.Errorf("fingerprint %q", got)
		}
	})
}
