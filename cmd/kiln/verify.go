package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/publish"
)

// trustFlags are the flags of commands that check signatures.
type trustFlags struct {
	keys  []string
	files []string
}

func (f *trustFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.keys, "key", nil, "a `file` with a public Ed25519 key that may have signed; may be repeated")
	cmd.Flags().StringArrayVar(&f.files, "trust", nil, "a `file` with keys that may have signed, with their dates; see kiln key")
	_ = cmd.MarkFlagFilename("key", "pem", "pub")
	_ = cmd.MarkFlagFilename("trust", "json")
}

// read returns the keys that are given, nil if none are.
func (f *trustFlags) read() (*sign.Trust, error) {
	if len(f.keys)+len(f.files) == 0 {
		return nil, nil //nolint:nilnil // signatures are not to be checked
	}
	all := &sign.Trust{}
	// What a trust file says of a key counts more than the key alone: it may be revoked.
	for _, name := range f.files {
		t, err := sign.ReadTrust(name)
		if err != nil {
			return nil, fmt.Errorf("--trust: %w", err)
		}
		for _, k := range t.Keys {
			if !all.Add(k) {
				return nil, fmt.Errorf("--trust: key %s is in several files", &k)
			}
		}
	}
	for _, name := range f.keys {
		public, err := sign.ReadPublicKey(name)
		if err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
		k, err := sign.NewTrustedKey(filepath.Base(name), public)
		if err != nil {
			return nil, fmt.Errorf("--key: %w", err)
		}
		all.Add(k)
	}
	if len(all.Keys) == 0 {
		return nil, errors.New("--trust: there is no key in it")
	}
	return all, nil
}

func (a *app) verifyCommand() *cobra.Command {
	var statement string
	var trust trustFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify WHEEL…",
		Short: "Check wheels against their provenance, hashes and signatures",
		Long: `Compares each wheel with its RECORD, with the provenance that was published with it (FILE.whl.intoto.jsonl) or
the record of its build in dist/records, and with the metadata and the bill of materials that the provenance names. With --key
or --trust the provenance must be signed by one of these keys, while it was valid.`,
		Example: `  kiln verify dist/*.whl
  kiln verify --key release.pub demo-1.0-cp312-cp312-linux_x86_64.whl
  kiln verify --trust trust.json demo-1.0-cp312-cp312-linux_x86_64.whl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := publish.VerifyOptions{Statement: statement}
			if statement != "" && len(args) > 1 {
				return fmt.Errorf("--statement is about one wheel, and there are %d", len(args))
			}
			var err error
			if opts.Trust, err = trust.read(); err != nil {
				return err
			}
			return a.verify(cmd.Context(), args, opts, asJSON)
		},
	}
	cmd.Flags().StringVar(&statement, "statement", "", "the `file` with the provenance (default: beside the wheel)")
	trust.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) verify(ctx context.Context, paths []string, opts publish.VerifyOptions, asJSON bool) error {
	var verdicts []*publish.Verdict
	bad := 0
	for _, path := range paths {
		v, err := publish.Verify(ctx, path, opts)
		if err != nil {
			return err
		}
		if !v.OK() {
			bad++
		}
		verdicts = append(verdicts, v)
	}
	if asJSON {
		if err := a.printJSON(map[string]any{"format": "kiln-verify/1", "wheels": verdicts}); err != nil {
			return err
		}
	} else {
		table := ui.NewTable("FILE", "RESULT", "SIGNED", "TEST", "ROW", "SOURCE")
		for _, v := range verdicts {
			result := "ok"
			if !v.OK() {
				result = "NOT OK"
			}
			table.Add(v.File, result, signedText(v, opts.Trust != nil), v.Test, v.Row, v.Source)
		}
		if err := table.Write(a.stdout, a.out); err != nil {
			return err
		}
		for _, v := range verdicts {
			for _, p := range v.Problems {
				fmt.Fprintf(a.stdout, "%s: %s\n", v.File, strings.ReplaceAll(p, "\n", " "))
			}
			for _, n := range v.Notes {
				fmt.Fprintf(a.stdout, "%s: note: %s\n", v.File, n)
			}
		}
	}
	if bad > 0 {
		return rowsFailedError{fmt.Errorf("%s of %d not as published", units.Count(bad, "wheel"), len(paths))}
	}
	return nil
}

func signedText(v *publish.Verdict, checked bool) string {
	switch {
	case v.Signer != "" && v.SignerName != "":
		return "by " + v.SignerName + " (" + v.Signer + ")"
	case v.Signer != "":
		return "by " + v.Signer
	case !v.Signed:
		return "no"
	case !checked:
		return "not checked"
	}
	return "not by a trusted key"
}
