package publishtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
)

// Keys writes a pair of keys as openssl would, and returns their paths.
func Keys(t testing.TB, dir, name string) (private, public string) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, kind string, data []byte, err error) {
		if err == nil {
			err = os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	private, public = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".pub")
	data, err := x509.MarshalPKCS8PrivateKey(key)
	write(private, "PRIVATE KEY", data, err)
	data, err = x509.MarshalPKIXPublicKey(pub)
	write(public, "PUBLIC KEY", data, err)
	return private, public
}
