// Package sign says who made files: in-toto statements in DSSE envelopes, signed with Ed25519, and
// the keys that a user trusts. It serves everything that kiln signs, wheels and models alike.
//
// It knows the frame of a statement, not what is said in it, and no certificates: trust is a file
// with keys. Envelopes and statements are those that the tools of Sigstore and in-toto read.
package sign

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// StatementType is that of an in-toto Statement v1.
const StatementType = "https://in-toto.io/Statement/v1"

// payloadType says that an envelope has an in-toto statement.
const payloadType = "application/vnd.in-toto+json"

// maxKeyBytes bounds the files of keys and trust.
const maxKeyBytes = 1 << 20

// Subject is a file that a statement is about.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// NewSubject is a subject that is known by its SHA-256.
func NewSubject(name, sha256 string) Subject {
	return Subject{Name: name, Digest: map[string]string{"sha256": sha256}}
}

// Find returns the subject of that name, nil if there is none.
func Find(list []Subject, name string) *Subject {
	if i := slices.IndexFunc(list, func(s Subject) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// Envelope is a DSSE v1 envelope: a payload with its signatures.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an [Envelope]. KeyID is a hint and not itself signed.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"`
}

// preAuth is what DSSE signs.
func preAuth(kind string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload)
}

// Seal puts a statement into an envelope, as one line of JSON without its end.
func Seal(statement []byte, key ed25519.PrivateKey) ([]byte, error) {
	return json.Marshal(Envelope{
		PayloadType: payloadType, Payload: statement,
		Signatures: []Signature{{KeyID: KeyID(key.Public().(ed25519.PublicKey)), Sig: ed25519.Sign(key, preAuth(payloadType, statement))}},
	})
}

// Open returns what is in an envelope, unchecked, and the envelope; nil if text is a bare
// statement.
func Open(text []byte) (statement []byte, e *Envelope, err error) {
	e = new(Envelope)
	if json.Unmarshal(text, e) != nil || e.PayloadType == "" {
		return text, nil, nil
	}
	if e.PayloadType != payloadType {
		return nil, nil, fmt.Errorf("the envelope has a payload of type %q, want %q", e.PayloadType, payloadType)
	}
	return e.Payload, e, nil
}

// ErrSignature is the error for a statement that no trusted key has signed in its time.
var ErrSignature = errors.New("not signed by a trusted key")

// clockSkew is how far the clock of a signer may be ahead.
const clockSkew = 10 * time.Minute

// Verify returns the key that signed the envelope, which may be nil for a statement without one. at
// is when it was signed, as the statement itself says. One signature of a key that was valid then
// is enough; what else is there does not count.
func (t *Trust) Verify(e *Envelope, at time.Time) (*Key, error) {
	if e == nil || len(e.Signatures) == 0 {
		return nil, fmt.Errorf("%w: there is no signature", ErrSignature)
	}
	message := preAuth(e.PayloadType, e.Payload)
	var why []string
	for i := range t.Keys {
		k := &t.Keys[i]
		if !slices.ContainsFunc(e.Signatures, func(s Signature) bool { return ed25519.Verify(k.public, message, s.Sig) }) {
			continue
		}
		if err := k.valid(at); err != nil {
			why = append(why, err.Error())
			continue
		}
		return k, nil
	}
	if len(why) == 0 {
		var ids []string
		for _, s := range e.Signatures {
			ids = append(ids, s.KeyID)
		}
		why = []string{"its signature is by " + strings.Join(ids, ", ")}
	}
	return nil, fmt.Errorf("%w: %s", ErrSignature, strings.Join(why, "; "))
}

// KeyID names a public key: the first 16 hexadecimal digits of its hash.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// ParsePrivateKey reads an Ed25519 key in PEM, PKCS #8, as `openssl genpkey -algorithm ed25519`
// and [NewKey] make it.
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	der, err := decodePEM(text, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	if k, ok := key.(ed25519.PrivateKey); ok {
		return k, nil
	}
	return nil, errors.New("it is no Ed25519 key")
}

// ReadPrivateKey reads a file with [ParsePrivateKey].
func ReadPrivateKey(path string) (ed25519.PrivateKey, error) { return readKey(path, ParsePrivateKey) }

// ParsePublicKey reads the public half, as `openssl pkey -pubout` makes it.
func ParsePublicKey(text []byte) (ed25519.PublicKey, error) {
	der, err := decodePEM(text, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	return parsePublic(der)
}

func parsePublic(der []byte) (ed25519.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, err
	}
	if k, ok := key.(ed25519.PublicKey); ok {
		return k, nil
	}
	return nil, errors.New("it is no Ed25519 key")
}

// ReadPublicKey reads a file with [ParsePublicKey].
func ReadPublicKey(path string) (ed25519.PublicKey, error) { return readKey(path, ParsePublicKey) }

func readKey[K any](path string, parse func([]byte) (K, error)) (key K, err error) {
	text, err := fsx.ReadFile(path, maxKeyBytes)
	if err != nil {
		return key, err
	}
	if key, err = parse(text); err != nil {
		return key, fmt.Errorf("read key %s: %w", path, err)
	}
	return key, nil
}

func decodePEM(text []byte, kind string) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("it has no block %q", kind)
	}
	return block.Bytes, nil
}

// NewKey writes a new pair of keys, path.pem, which only its owner may read, and path.pub. Files
// that are there are not replaced.
func NewKey(path string) (ed25519.PublicKey, error) {
	for _, name := range []string{path + ".pem", path + ".pub"} {
		if _, err := os.Lstat(name); err == nil {
			return nil, &fs.PathError{Op: "write key", Path: name, Err: fs.ErrExist}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	open, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	if err := fsx.WriteFile(path+".pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return nil, err
	}
	return public, fsx.WriteFile(path+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: open}), 0o644)
}
