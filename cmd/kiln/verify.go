package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/publish"
)

func (a *app) verifyCommand() *cobra.Command {
	var statement string
	var keys []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify WHEEL…",
		Short: "Check wheels against their provenance, hashes and signatures",
		Long: `Compares each wheel with its RECORD, with the provenance that was published with it (FILE.whl.intoto.jsonl) or
the record of its build in dist/records, and with its bill of materials (FILE.whl.cdx.json). With --key the provenance must be
signed by that key.`,
		Example: `  kiln verify dist/*.whl
  kiln verify --key release.pub demo-1.0-cp312-cp312-linux_x86_64.whl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := publish.VerifyOptions{Statement: statement}
			if statement != "" && len(args) > 1 {
				return fmt.Errorf("--statement is about one wheel, and there are %d", len(args))
			}
			for _, name := range keys {
				key, err := publish.ReadPublicKey(name)
				if err != nil {
					return fmt.Errorf("--key: %w", err)
				}
				opts.Keys = append(opts.Keys, key)
			}
			return a.verify(cmd.Context(), args, opts, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&statement, "statement", "", "the `file` with the provenance (default: beside the wheel)")
	flags.StringArrayVar(&keys, "key", nil, "a `file` with the public Ed25519 key that must have signed; may be repeated")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagFilename("key", "pem", "pub")
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
			table.Add(v.File, result, signedText(v, opts.Keys), v.Test, v.Row, v.Source)
		}
		if err := table.Write(a.stdout, a.out); err != nil {
			return err
		}
		for _, v := range verdicts {
			for _, p := range v.Problems {
				fmt.Fprintf(a.stdout, "%s: %s\n", v.File, strings.ReplaceAll(p, "\n", " "))
			}
		}
	}
	if bad > 0 {
		return rowsFailedError{fmt.Errorf("%s of %d not as published", units.Count(bad, "wheel"), len(paths))}
	}
	return nil
}

func signedText(v *publish.Verdict, keys []ed25519.PublicKey) string {
	switch {
	case v.Signer != "":
		return "by " + v.Signer
	case v.Signed && len(keys) == 0:
		return "not checked"
	}
	return cmp.Or(map[bool]string{true: "by another"}[v.Signed], "no")
}
