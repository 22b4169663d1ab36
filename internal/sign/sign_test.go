package sign_test

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/sign"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair makes keys in a folder.
func pair(t *testing.T, name string) (ed25519.PrivateKey, sign.Key) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	public, err := sign.NewKey(path)
	must(t, err)
	private, err := sign.ReadPrivateKey(path + ".pem")
	must(t, err)
	again, err := sign.ReadPublicKey(path + ".pub")
	must(t, err)
	if !public.Equal(again) || !public.Equal(private.Public()) {
		t.Error("the files have another key")
	}
	if info, err := os.Stat(path + ".pem"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v", info.Mode(), err)
	}
	if _, err := sign.NewKey(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second key of the same name: %v", err)
	}
	k, err := sign.NewTrustedKey(name, public)
	must(t, err)
	return private, k
}

func envelope(t *testing.T, key ed25519.PrivateKey) *sign.Envelope {
	t.Helper()
	text, err := sign.Seal([]byte(`{"_type":"x"}`), key)
	must(t, err)
	payload, e, err := sign.Open(text)
	must(t, err)
	if e == nil || string(payload) != `{"_type":"x"}` {
		t.Fatalf("%s: %s", text, payload)
	}
	return e
}

func TestDates(t *testing.T) {
	private, key := pair(t, "release")
	e := envelope(t, private)
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	for _, tt := range []struct {
		name   string
		change func(k *sign.Key)
		at     time.Time
		want   string
	}{
		{"no bounds", func(*sign.Key) {}, day(1), ""},
		{"no bounds and no time", func(*sign.Key) {}, time.Time{}, ""},
		{"on the first day", func(k *sign.Key) { k.From = day(5) }, day(5), ""},
		{"before it", func(k *sign.Key) { k.From = day(5) }, day(4), "is valid from 2026-01-05"},
		{"on the last day", func(k *sign.Key) { k.Until = day(5) }, day(5).Add(-1), ""},
		{"after it", func(k *sign.Key) { k.Until = day(5) }, day(5), "was valid until 2026-01-05"},
		{"bounds and no time", func(k *sign.Key) { k.Until = day(5) }, time.Time{}, "does not say when"},
		{"tomorrow", func(*sign.Key) {}, time.Now().Add(24 * time.Hour), "in the future"},
		{"revoked later", func(k *sign.Key) { k.Revoked, k.Reason = day(20), "stolen" }, day(1), "revoked on 2026-01-20T00:00:00Z (stolen)"},
	} {
		k := key
		tt.change(&k)
		got, err := (&sign.Trust{Keys: []sign.Key{k}}).Verify(e, tt.at)
		switch {
		case tt.want == "" && (err != nil || got.ID != key.ID):
			t.Errorf("%s: %v, %v", tt.name, got, err)
		case tt.want != "" && (!errors.Is(err, sign.ErrSignature) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "release ("+key.ID+")")):
			t.Errorf("%s: %v, want %q with the name of the key", tt.name, err, tt.want)
		}
	}
}

// TestSeveralSignatures: one good signature is enough, whatever else is in the envelope.
func TestSeveralSignatures(t *testing.T) {
	privateA, a := pair(t, "a")
	privateB, b := pair(t, "b")
	_, stranger := pair(t, "c")
	e := envelope(t, privateA)
	e.Signatures = append([]sign.Signature{{KeyID: b.ID, Sig: []byte("nonsense")}}, append(envelope(t, privateB).Signatures, e.Signatures...)...)
	revoked := a
	revoked.Revoked = time.Now()
	if k, err := (&sign.Trust{Keys: []sign.Key{revoked, b}}).Verify(e, time.Now()); err != nil || k.ID != b.ID {
		t.Errorf("%v, %v", k, err)
	}
	if k, err := (&sign.Trust{Keys: []sign.Key{stranger}}).Verify(e, time.Now()); !errors.Is(err, sign.ErrSignature) {
		t.Errorf("%v, %v", k, err)
	}
	// The id is a hint: a wrong one neither helps nor hurts.
	e = envelope(t, privateA)
	e.Signatures[0].KeyID = b.ID
	if k, err := (&sign.Trust{Keys: []sign.Key{b, a}}).Verify(e, time.Now()); err != nil || k.ID != a.ID {
		t.Errorf("a wrong id: %v, %v", k, err)
	}
	if _, err := (&sign.Trust{Keys: []sign.Key{a}}).Verify(nil, time.Now()); !errors.Is(err, sign.ErrSignature) {
		t.Errorf("no envelope: %v", err)
	}
}

func TestTrustFile(t *testing.T) {
	private, a := pair(t, "a")
	_, b := pair(t, "b")
	a.From, a.Until = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "trust.json")
	trust := &sign.Trust{Keys: []sign.Key{a, b}}
	if trust.Add(a) {
		t.Error("the same key twice")
	}
	must(t, trust.Write(file))
	read, err := sign.ReadTrust(file)
	must(t, err)
	if k, err := read.Verify(envelope(t, private), a.From); err != nil || k.Name != "a" || !k.Until.Equal(a.Until) {
		t.Errorf("%+v, %v", k, err)
	}
	text, err := os.ReadFile(file)
	must(t, err)
	for name, change := range map[string]func(string) string{
		"unknown field":   func(s string) string { return strings.Replace(s, `"from"`, `"form"`, 1) },
		"another id":      func(s string) string { return strings.Replace(s, a.ID, b.ID, 1) },
		"another format":  func(s string) string { return strings.Replace(s, "kiln-trust/1", "kiln-trust/2", 1) },
		"a key twice":     func(s string) string { return strings.Replace(s, `"name": "b"`, `"name": "a"`, 1) },
		"never valid":     func(s string) string { return strings.Replace(s, "2027-", "2025-", 1) },
		"no key":          func(s string) string { return strings.Replace(s, a.Public, "AAAA", 1) },
		"two documents":   func(s string) string { return s + s },
		"no date":         func(s string) string { return strings.Replace(s, "2027-01-01", "tomorrow", 1) },
		"an end and more": func(s string) string { return s + "}" },
	} {
		changed := change(string(text))
		if changed == string(text) {
			t.Fatalf("%s: nothing changed", name)
		}
		if _, err := sign.ParseTrust([]byte(changed)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	trust.Keys[1].Name = "a"
	if err := trust.Write(file); err == nil {
		t.Error("two keys of one name were written")
	}
}

func FuzzTrust(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-trust/1","keys":[{"id":"66687aadf862bd77","public":"MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","from":"2026-01-01T00:00:00Z"}]}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		trust, err := sign.ParseTrust(text)
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "trust.json")
		if err := trust.Write(file); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if again, err := sign.ReadTrust(file); err != nil || len(again.Keys) != len(trust.Keys) {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"keyid":"a","sig":"AAAA"}]}`))
	fuzzcorpus.Add(f)
	trust := &sign.Trust{}
	_, k, err := ed25519.GenerateKey(nil)
	must(f, err)
	key, err := sign.NewTrustedKey("", k.Public().(ed25519.PublicKey))
	must(f, err)
	trust.Add(key)
	f.Fuzz(func(t *testing.T, text []byte) {
		_, e, err := sign.Open(text)
		if err != nil {
			return
		}
		if _, err := trust.Verify(e, time.Now()); err == nil {
			t.Fatal("a forged signature")
		}
	})
}

func FuzzKey(f *testing.F) {
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PRIVATE KEY-----\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if k, err := sign.ParsePublicKey(text); err == nil && len(k) != ed25519.PublicKeySize {
			t.Fatal("a key of another size")
		}
		if k, err := sign.ParsePrivateKey(text); err == nil {
			if _, err := sign.Seal(nil, k); err != nil {
				t.Fatal(err)
			}
		}
	})
}
