//go:build linux

package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// rocmRepository makes a repository like AMD's for one release and one Ubuntu, whose package puts a
// hipcc where the real one does. Needs gpg, dpkg-deb and dpkg-scanpackages.
const rocmRepository = `set -e
export GNUPGHOME=$PWD/gnupg
mkdir -m 700 gnupg
gpg --batch --quiet --passphrase '' --quick-gen-key 'kiln test <test@example.invalid>' rsa3072 sign never
mkdir -p rocm deb/DEBIAN deb/opt/rocm-6.1.0/bin
gpg --armor --export >rocm/rocm.gpg.key
printf 'Package: rocm-hip-sdk\nVersion: 6.1.0\nArchitecture: amd64\nMaintainer: x <x@example.invalid>\nDescription: x\n' >deb/DEBIAN/control
printf '#!/bin/sh\necho "HIP version: 6.1.40091"\n' >deb/opt/rocm-6.1.0/bin/hipcc
chmod 755 deb/opt/rocm-6.1.0/bin/hipcc
top=rocm/apt/6.1
mkdir -p $top/pool $top/dists/jammy/main/binary-amd64
dpkg-deb --root-owner-group --build deb $top/pool/rocm-hip-sdk.deb >/dev/null
(cd $top && dpkg-scanpackages pool >dists/jammy/main/binary-amd64/Packages 2>/dev/null)
cd $top/dists/jammy
file=main/binary-amd64/Packages
printf 'Origin: repo.radeon.com\nSuite: jammy\nCodename: jammy\nComponents: main\nArchitectures: amd64\nDate: %s\nSHA256:\n %s %s %s\n' \
  "$(LC_ALL=C date -Ru)" "$(sha256sum $file | cut -d' ' -f1)" "$(stat -c %s $file)" $file >Release
gpg --batch --quiet --detach-sign --armor -o Release.gpg Release
gpg --batch --quiet --clearsign -o InRelease Release
gpg --with-colons --list-keys | awk -F: '/^fpr/ { print $10; exit }'
`

// TestE2EWorkflowROCm: kiln workflow rocm with the real apt, from a repository that is signed with a
// key of this test, on a system that says it is Ubuntu. Without the key's fingerprint nothing is
// installed.
func TestE2EWorkflowROCm(t *testing.T) {
	kilntest.NeedE2E(t, "jit-rocm")
	repository := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", rocmRepository)
	cmd.Dir, cmd.Stderr = repository, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("make a repository: %v", err)
	}
	fingerprint := strings.TrimSpace(string(out))
	server := httptest.NewServer(http.FileServer(http.Dir(repository)))
	defer server.Close()
	files := t.TempDir()
	const plan = "packages: {demo: {versions: [\"1.0\"], matrix: [{os: ubuntu-22.04, rocm: \"6.1\", torch: \"2.4.0\", python: \"3.12\"}]}}\n"
	if err := os.WriteFile(filepath.Join(files, "packages.yml"), []byte(plan), 0o666); err != nil {
		t.Fatal(err)
	}
	v := launch(t, buildKiln(t), "ci", "--volume", files+":/project:ro", "--env", "GITHUB_ACTIONS=true", "--env", "RUNNER_ENVIRONMENT=github-hosted",
		"--env", "GITHUB_ENV=/env", "--env", "GITHUB_PATH=/path")
	// Only the repository of the test: the archive of the distribution is not what is shown.
	v.must(`rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; rm -f /etc/os-release; printf 'ID=ubuntu\nVERSION_CODENAME=jammy\nPRETTY_NAME="Ubuntu 22.04"\n' >/etc/os-release`)
	command := "cd /project && kiln workflow rocm demo-1.0-rocm6.1-torch2.4.0-cp312-linux_x86_64 --source " + server.URL
	if out, err := v.shell(command + " 2>&1"); err == nil || !strings.Contains(out, "is "+fingerprint+", want CA8BB4727A47B4D09B4EE8969386B48A1A693C5C") {
		t.Errorf("with another key: %v\n%s", err, out)
	}
	if out, err := v.shell("test ! -e /opt/rocm-6.1.0 && ls /etc/apt/sources.list.d"); err != nil || out != "" {
		t.Errorf("after another key: %v, %q", err, out)
	}
	if got := v.must(command + " --fingerprint " + fingerprint + " 2>/log || { cat /log; exit 1; }"); !strings.Contains(got, "ROCm 6.1 is in /opt/rocm-6.1.0") {
		t.Errorf("installed: %s", got)
	}
	if got := v.must("/opt/rocm-6.1.0/bin/hipcc; cat /env /path"); got != "HIP version: 6.1.40091\nROCM_HOME=/opt/rocm-6.1.0\nROCM_PATH=/opt/rocm-6.1.0\n/opt/rocm-6.1.0/bin\n" {
		t.Errorf("afterwards: %q", got)
	}
	v.must(command + " --fingerprint " + fingerprint) // again: nothing to do
}

// rocmRow is examples/hello-cuda for ROCm, in Debian's packages of it.
const rocmRow = `packages:
  hello-cuda:
    source: {path: EXAMPLE}
    version_from: {file: pyproject.toml}
    extra_deps: [build, "setuptools>=77"]
    env: {BUILD_TARGET: {rocm: rocm, default: cpu}}
    test: {expressions: ["hello_cuda.backend()"], image: localhost/kiln-e2e/trixie-hip-runtime}
    matrix:
      - {os: debian-13, python: "3.13", rocm: "5.7", arch: "gfx90a gfx1030", image: localhost/kiln-e2e/trixie-hip}
`

// TestE2EROCmRow builds, audits and tests a ROCm row of hello-cuda; the audit finds code for the
// row's GPUs, and none for another.
func TestE2EROCmRow(t *testing.T) {
	kilntest.NeedE2E(t, "jit-rocm")
	dir, kiln := t.TempDir(), buildKiln(t)
	text := strings.ReplaceAll(rocmRow, "EXAMPLE", repository(t, "examples/hello-cuda"))
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), kiln, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("build", "--runner", "podman"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "dist", "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels: %q, %v", wheels, err)
	}
	if out, err := run("audit", "--gfx", "gfx90a gfx1030", wheels[0]); err != nil {
		t.Errorf("audit for the row's GPUs: %v\n%s", err, out)
	}
	if out, err := run("audit", "--gfx", "gfx90a gfx1100", wheels[0]); err == nil || !strings.Contains(out, "no code for gfx1100") {
		t.Errorf("audit for another GPU: %v\n%s", err, out)
	}
}
