package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// ErrNoToken is the error for a token that does not exist, has expired or was revoked. Which
// of these it is stays secret.
var ErrNoToken = errors.New("no such token")

// tokenPrefix begins every token, so that scanners for leaked secrets can find it.
const tokenPrefix = "kiln_"

// A Token is the right to change projects of an index, without its secret: only the
// secret's SHA-256 is stored.
type Token struct {
	// ID names the token in lists and logs; it is no secret.
	ID string `json:"id"`
	// Note says whose token it is.
	Note string `json:"note,omitempty"`
	// Projects are patterns of normalized project names in which * stands for any run of
	// characters. "*" is every project.
	Projects []string `json:"projects"`
	// Scopes are what the token permits: ScopeUpload, ScopeRead.
	Scopes []string `json:"scopes"`
	// Created is when the token was made.
	Created time.Time `json:"created"`
	// Expires is when it ends; zero is never.
	Expires time.Time `json:"expires,omitzero"`
	// SHA256 is the hash of the secret in hex.
	SHA256 string `json:"sha256"`
}

const (
	// ScopeUpload lets a token add files, and read what a private index has.
	ScopeUpload = "upload"
	// ScopeRead lets a token read what a private index has.
	ScopeRead = "read"
)

// Allows reports whether the token permits scope on a project.
func (t Token) Allows(scope, project string) bool {
	return t.has(scope) && slices.ContainsFunc(t.Projects, func(p string) bool { return matchPattern(p, project) })
}

func (t Token) has(scope string) bool {
	return slices.Contains(t.Scopes, scope) || scope == ScopeRead && slices.Contains(t.Scopes, ScopeUpload)
}

// readsAll reports whether the token permits to read every project, and so the lists of them.
func (t Token) readsAll() bool { return t.has(ScopeRead) && slices.Contains(t.Projects, "*") }

// matchPattern matches a name against a pattern with *, in linear space and without
// backtracking over more than the last *.
func matchPattern(pattern, name string) bool {
	star, mark := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// NewToken describes a token to create.
type NewToken struct {
	// Note says whose token it is.
	Note string
	// Projects are patterns of project names; see [Token]. At least one is needed.
	Projects []string
	// Expires is when it ends; zero is never.
	Expires time.Time
	// ReadOnly makes a token with ScopeRead instead of ScopeUpload.
	ReadOnly bool
}

// Tokens is the file of tokens of an index. A change by another process is seen by the next
// lookup. It may be used by several goroutines at once.
type Tokens struct {
	path string

	mu    sync.Mutex
	stamp tokenStamp
	list  []Token
}

// tokenStamp says which version of a file was read.
type tokenStamp struct {
	size  int64
	mtime time.Time
}

// tokensFile is the format on disk.
type tokensFile struct {
	Format int     `json:"kiln-tokens"`
	Tokens []Token `json:"tokens"`
}

// OpenTokens reads the tokens in the file at path. A file that does not exist has none; it is
// made, readable by its owner alone, by the first [Tokens.Create].
func OpenTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t, t.load()
}

// load reads the file if it changed. t.mu is held.
func (t *Tokens) load() error {
	info, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		t.stamp, t.list = tokenStamp{}, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	stamp := tokenStamp{info.Size(), info.ModTime()}
	if stamp == t.stamp {
		return nil
	}
	data, err := fsx.ReadFile(t.path, 64<<20)
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	var file tokensFile
	if err := json.Unmarshal(data, &file); err != nil {
		return fmt.Errorf("read tokens: %s: %w", t.path, err)
	}
	if file.Format != 1 {
		return fmt.Errorf("read tokens: %s: format %d, this kiln knows 1", t.path, file.Format)
	}
	t.stamp, t.list = stamp, file.Tokens
	return nil
}

// change edits the list under the lock of the file, so that two commands do not lose a change.
func (t *Tokens) change(ctx context.Context, edit func([]Token) ([]Token, error)) error {
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	lock, err := fsx.Lock(ctx, t.path+".lock")
	if err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	defer lock.Unlock() //nolint:errcheck // freed by the system at the latest when the process ends
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stamp = tokenStamp{} // the clock of a file system may be coarse
	if err := t.load(); err != nil {
		return err
	}
	list, err := edit(slices.Clone(t.list))
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(tokensFile{Format: 1, Tokens: list}, "", "  ")
	if err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	if err := fsx.WriteFile(t.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	t.stamp = tokenStamp{}
	return t.load()
}

// Create makes a token. The secret is returned once and stored nowhere.
func (t *Tokens) Create(ctx context.Context, n NewToken) (secret string, token Token, err error) {
	if len(n.Projects) == 0 {
		return "", Token{}, errors.New("create token: no project pattern; \"*\" is every project")
	}
	if !n.Expires.IsZero() && !n.Expires.After(time.Now()) {
		return "", Token{}, fmt.Errorf("create token: it would have ended at %s already", n.Expires.UTC().Format(time.RFC3339))
	}
	token = Token{Note: n.Note, Scopes: []string{ScopeUpload}, Created: time.Now().UTC().Truncate(time.Second), Expires: n.Expires.UTC()}
	if n.Expires.IsZero() {
		token.Expires = time.Time{}
	}
	if n.ReadOnly {
		token.Scopes = []string{ScopeRead}
	}
	for _, pattern := range n.Projects {
		p := wheel.NormalizeName(pattern)
		if p == "" || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789-*") != "" {
			return "", Token{}, fmt.Errorf("create token: %q is no pattern of project names: letters, digits, - and * are", pattern)
		}
		token.Projects = append(token.Projects, p)
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	secret = tokenPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(secret))
	token.SHA256 = hex.EncodeToString(sum[:])
	var id [4]byte // says nothing about the secret
	_, _ = rand.Read(id[:])
	token.ID = hex.EncodeToString(id[:])
	err = t.change(ctx, func(list []Token) ([]Token, error) { return append(list, token), nil })
	return secret, token, err
}

// List returns all tokens, in the order they were made. The caller owns the slice.
func (t *Tokens) List() ([]Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.load()
	return slices.Clone(t.list), err
}

// Revoke ends a token for good. The error is [ErrNoToken] if there is none with that ID.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	return t.change(ctx, func(list []Token) ([]Token, error) {
		i := slices.IndexFunc(list, func(t Token) bool { return t.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("revoke %s: %w", id, ErrNoToken)
		}
		return slices.Delete(list, i, i+1), nil
	})
}

// Lookup returns the token that a secret belongs to, or [ErrNoToken].
func (t *Tokens) Lookup(secret string) (Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.load(); err != nil {
		return Token{}, err
	}
	sum := sha256.Sum256([]byte(secret))
	want := []byte(hex.EncodeToString(sum[:]))
	var found Token
	ok := 0
	for _, token := range t.list { // all of them: the time taken says nothing
		if subtle.ConstantTimeCompare(want, []byte(token.SHA256)) == 1 {
			found, ok = token, 1
		}
	}
	if ok == 0 || !found.Expires.IsZero() && time.Now().After(found.Expires) {
		return Token{}, ErrNoToken
	}
	return found, nil
}

// requestSecret returns the secret a request carries: Bearer, or the password of Basic with
// any user, by convention __token__.
func requestSecret(r *http.Request) (string, bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return password, password != ""
	}
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	return secret, strings.EqualFold(scheme, "Bearer") && secret != ""
}
