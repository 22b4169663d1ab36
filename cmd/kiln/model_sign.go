package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/model/exl2"
)

// modelType says what is said of the files of a model.
const modelType = "https://github.com/kiln-build/kiln/model/v1"

// modelStatement is an in-toto statement about a model: its manifest, and every file that the
// manifest names.
type modelStatement struct {
	Type          string         `json:"_type"`
	Subject       []sign.Subject `json:"subject"`
	PredicateType string         `json:"predicateType"`
	Predicate     struct {
		Architecture string    `json:"architecture"`
		SignedOn     time.Time `json:"signedOn"`
	} `json:"predicate"`
}

func (a *app) modelSignCommand(links *exl2.Links) *cobra.Command {
	var key, manifest string
	cmd := &cobra.Command{
		Use:   "sign FOLDER",
		Short: "Sign the manifest of a model, and with it every file",
		Long: `Verifies the model, as kiln model verify does, and writes a signed statement about its manifest and the files that it
names beside the manifest: kiln-manifest.json.intoto.jsonl. Keys are those of kiln key create.`,
		Example: "  kiln model sign my-model-exl2 --sign-key release.pem\n  kiln model verify my-model-exl2 --key release.pub",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.signModel(cmd.Context(), args[0], manifest, key, *links)
		},
	}
	cmd.Flags().StringVar(&key, "sign-key", "", "a `file` with an Ed25519 key; - reads it from the standard input")
	cmd.Flags().StringVar(&manifest, "manifest", "", "the manifest `file` (default: the one in the folder)")
	_ = cmd.MarkFlagRequired("sign-key")
	_ = cmd.MarkFlagFilename("sign-key", "pem")
	return cmd
}

func (a *app) signModel(ctx context.Context, dir, manifest, keyFile string, links exl2.Links) error {
	key, err := a.readSigningKey(keyFile)
	if err != nil {
		return fmt.Errorf("--sign-key: %w", err)
	}
	path := cmp.Or(manifest, filepath.Join(dir, exl2.ManifestName))
	var text []byte
	progress := ui.NewProgress(a.stderr, a.err, filepath.Base(dir))
	report, err := exl2.Verify(ctx, dir, exl2.VerifyOptions{
		ManifestPath: manifest, Links: links, Progress: func(p exl2.Progress) { progress.Set(p.Done, p.Total) },
		Signature: func(manifest []byte) (string, error) { text = manifest; return "", nil },
	})
	progress.Close()
	if err != nil {
		return err
	}
	for _, p := range report.Problems {
		fmt.Fprintln(a.stderr, p)
	}
	if !report.OK() {
		return rowsFailedError{fmt.Errorf("%s: %s; not signed", dir, units.Count(len(report.Problems), "problem"))}
	}
	m, err := exl2.ParseManifest(text)
	if err != nil {
		return err
	}
	s := modelStatement{Type: sign.StatementType, PredicateType: modelType, Subject: []sign.Subject{sign.NewSubject(filepath.Base(path), digest(text))}}
	for _, f := range m.Files {
		s.Subject = append(s.Subject, sign.NewSubject(f.Name, f.SHA256))
	}
	s.Predicate.Architecture, s.Predicate.SignedOn = m.Architecture, time.Now().UTC().Truncate(time.Second)
	payload, err := json.Marshal(s)
	if err != nil {
		return err
	}
	sealed, err := sign.Seal(payload, key)
	if err != nil {
		return err
	}
	if err := fsx.WriteFile(path+exl2.SignatureSuffix, append(sealed, '\n'), 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s signed\n", path+exl2.SignatureSuffix, units.Count(len(m.Files), "file"))
	return err
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// maxSignature bounds the file with the signature of a model: some hundred bytes for each file.
const maxSignature = 64 << 20

// verifyManifest returns the name of the trusted key that signed a manifest.
func verifyManifest(path string, manifest []byte, trust *sign.Trust) (string, error) {
	text, err := fsx.ReadFile(path+exl2.SignatureSuffix, maxSignature)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("not signed: there is no %s", filepath.Base(path)+exl2.SignatureSuffix)
	}
	if err != nil {
		return "", err
	}
	return checkModelStatement(text, filepath.Base(path), manifest, trust)
}

// checkModelStatement checks the signature, and that it is about the bytes of a manifest.
func checkModelStatement(text []byte, name string, manifest []byte, trust *sign.Trust) (string, error) {
	payload, envelope, err := sign.Open(text)
	if err != nil {
		return "", err
	}
	var s modelStatement
	if err := json.Unmarshal(payload, &s); err != nil {
		return "", fmt.Errorf("its signature cannot be read: %w", err)
	}
	if s.Type != sign.StatementType || s.PredicateType != modelType {
		return "", fmt.Errorf("its signature is about %q, want %q", s.PredicateType, modelType)
	}
	key, err := trust.Verify(envelope, s.Predicate.SignedOn)
	if err != nil {
		return "", err
	}
	switch own := sign.Find(s.Subject, name); {
	case own == nil:
		return "", fmt.Errorf("its signature by %s is about other files", key)
	case own.Digest["sha256"] != digest(manifest):
		return "", fmt.Errorf("its signature by %s is about another manifest: sha256 %s, this one has %s", key, own.Digest["sha256"], digest(manifest))
	}
	return key.String(), nil
}
