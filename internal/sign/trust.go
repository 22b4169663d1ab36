package sign

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// trustFormat is the format of a trust file: JSON, every field known.
const trustFormat = "kiln-trust/1"

// Trust is a set of keys, those of a trust file or given one by one.
type Trust struct {
	Keys []Key
}

// Key is a public key with what is known of it.
type Key struct {
	// ID is [KeyID].
	ID string `json:"id"`
	// Name is what people call the key: a team, a year.
	Name string `json:"name,omitempty"`
	// Public is the key: base64 of PKIX DER, the inner lines of the PEM file.
	Public string `json:"public"`
	// From and Until bound when the key signs: statements that say they were signed earlier than
	// From, or at Until or later, are refused. Zero means no bound.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Revoked is when it became known that others may have the private key. They can write any date
	// into a statement, so nothing that the key ever signed is accepted.
	Revoked time.Time `json:"revoked,omitzero"`
	// Reason is why it was revoked.
	Reason string `json:"reason,omitempty"`

	public ed25519.PublicKey
}

// NewTrustedKey is a key without bounds.
func NewTrustedKey(name string, public ed25519.PublicKey) (Key, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return Key{}, err
	}
	return Key{ID: KeyID(public), Name: name, Public: base64.StdEncoding.EncodeToString(der), public: public}, nil
}

// String names the key for people: its name with its id, or the id alone.
func (k *Key) String() string {
	if k.Name == "" {
		return k.ID
	}
	return k.Name + " (" + k.ID + ")"
}

// State says in a word how the key stands at a time: "valid", "not yet valid", "expired" or
// "revoked".
func (k *Key) State(at time.Time) string {
	switch {
	case !k.Revoked.IsZero():
		return "revoked"
	case !k.From.IsZero() && at.Before(k.From):
		return "not yet valid"
	case !k.Until.IsZero() && !at.Before(k.Until):
		return "expired"
	}
	return "valid"
}

// valid returns why a signature that was made at that time does not count, if it does not.
func (k *Key) valid(at time.Time) error {
	day := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if k.State(at) == "revoked" {
		return fmt.Errorf("key %s was revoked on %s (%s)", k, day(k.Revoked), cmp.Or(k.Reason, "no reason given"))
	}
	switch {
	case at.IsZero():
		if k.From.IsZero() && k.Until.IsZero() {
			return nil
		}
		return fmt.Errorf("key %s has dates, and the statement does not say when it was signed", k)
	case at.After(time.Now().Add(clockSkew)):
		return fmt.Errorf("key %s signed it on %s, which is in the future", k, day(at))
	}
	switch k.State(at) {
	case "not yet valid":
		return fmt.Errorf("key %s is valid from %s, and it was signed on %s", k, day(k.From), day(at))
	case "expired":
		return fmt.Errorf("key %s was valid until %s, and it was signed on %s", k, day(k.Until), day(at))
	}
	return nil
}

// Find returns the key with that id or name, nil if there is none.
func (t *Trust) Find(name string) *Key {
	for i := range t.Keys {
		if k := &t.Keys[i]; k.ID == name || k.Name != "" && k.Name == name {
			return k
		}
	}
	return nil
}

// Add adds a key. What is already known of the same key stays: a revoked one stays revoked.
func (t *Trust) Add(k Key) (added bool) {
	if t.Find(k.ID) != nil {
		return false
	}
	t.Keys = append(t.Keys, k)
	return true
}

// trustFile is a trust file as it is written.
type trustFile struct {
	Format string `json:"format"`
	Keys   []Key  `json:"keys"`
}

// ParseTrust reads a trust file. A field that it does not know is an error, since it could be a
// restriction that is overlooked.
func ParseTrust(text []byte) (*Trust, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var f trustFile
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is something after the end of the document")
	}
	if f.Format != trustFormat {
		return nil, fmt.Errorf("format %q, want %q", f.Format, trustFormat)
	}
	names := map[string]bool{}
	for i := range f.Keys {
		k := &f.Keys[i]
		der, err := base64.StdEncoding.DecodeString(k.Public)
		if err != nil {
			return nil, fmt.Errorf("key %d: public: %w", i+1, err)
		}
		if k.public, err = parsePublic(der); err != nil {
			return nil, fmt.Errorf("key %d: public: %w", i+1, err)
		}
		if id := KeyID(k.public); k.ID != id {
			return nil, fmt.Errorf("key %d: it has the id %s, not %q", i+1, id, k.ID)
		}
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		for _, name := range slices.Compact([]string{k.ID, cmp.Or(k.Name, k.ID)}) {
			if names[name] {
				return nil, fmt.Errorf("key %d: %s is there twice", i+1, name)
			}
			names[name] = true
		}
	}
	return &Trust{Keys: f.Keys}, nil
}

// check looks at name and dates.
func (k *Key) check() error {
	if strings.TrimSpace(k.Name) != k.Name || len(k.Name) > 200 {
		return fmt.Errorf("name %q: want at most 200 characters, without spaces around them", k.Name)
	}
	if !k.From.IsZero() && !k.Until.IsZero() && !k.From.Before(k.Until) {
		return fmt.Errorf("it is valid from %s and until %s, which is never", k.From.Format(time.RFC3339), k.Until.Format(time.RFC3339))
	}
	return nil
}

// ReadTrust reads a trust file.
func ReadTrust(path string) (*Trust, error) {
	text, err := fsx.ReadFile(path, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	t, err := ParseTrust(text)
	if err != nil {
		return nil, fmt.Errorf("read trust file %s: %w", path, err)
	}
	return t, nil
}

// Write writes a trust file that [ReadTrust] reads.
func (t *Trust) Write(path string) error {
	for i := range t.Keys {
		if err := t.Keys[i].check(); err != nil {
			return fmt.Errorf("key %s: %w", &t.Keys[i], err)
		}
	}
	text, err := json.MarshalIndent(trustFile{Format: trustFormat, Keys: t.Keys}, "", "  ")
	if err != nil {
		return err
	}
	if _, err := ParseTrust(text); err != nil {
		return fmt.Errorf("write trust file %s: %w", path, err)
	}
	return fsx.WriteFile(path, append(text, '\n'), 0o644)
}
