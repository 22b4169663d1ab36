package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/internal/ui"
)

func (a *app) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make signing keys, and keep the file of keys that are trusted",
		Long: `Keys sign what kiln publish and kiln model sign make. The trust file has the public keys that count, with dates:
a key that is replaced gets an end, and what it signed before stays good; a key that others may have is revoked, and nothing that
it ever signed is good, since its holder can write any date. kiln verify --trust FILE and kiln model verify --trust FILE use it.`,
		Example: "  kiln key create release\n  kiln key trust release.pub --name 'release 2026' --until 2027-01-01",
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(a.keyCreateCommand(), a.keyTrustCommand(), a.keyRetireCommand(), a.keyRevokeCommand(), a.keyListCommand())
	return cmd
}

// readSigningKey reads a private key from a file, from the standard input if the name is "-", or
// from the variable NAME if it is env:NAME.
func (a *app) readSigningKey(name string) (ed25519.PrivateKey, error) {
	if variable, ok := strings.CutPrefix(name, "env:"); ok {
		text := a.secrets.Getenv(variable)
		if text == "" {
			return nil, fmt.Errorf("the variable %s is not set or empty", variable)
		}
		return sign.ParsePrivateKey([]byte(text))
	}
	if name != "-" {
		return sign.ReadPrivateKey(name)
	}
	text, err := io.ReadAll(io.LimitReader(a.stdin, 64<<10))
	if err != nil {
		return nil, err
	}
	return sign.ParsePrivateKey(text)
}

// trustFlag is the file that the commands change.
func trustFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "trust", "trust.json", "the trust `file`")
	_ = cmd.MarkFlagFilename("trust", "json")
}

// dateFlag is a flag with a date or a time.
func dateFlag(cmd *cobra.Command, name, usage string) func() (time.Time, error) {
	var text string
	cmd.Flags().StringVar(&text, name, "", usage)
	return func() (time.Time, error) {
		if text == "" {
			return time.Time{}, nil
		}
		for _, layout := range []string{time.DateOnly, time.RFC3339} {
			if t, err := time.Parse(layout, text); err == nil && t.Year() > 0 {
				return t.UTC(), nil
			}
		}
		return time.Time{}, fmt.Errorf("--%s %q: use a date such as 2027-01-31, or 2027-01-31T12:00:00Z", name, text)
	}
}

func (a *app) keyCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "create NAME",
		Short:   "Make a pair of Ed25519 keys: NAME.pem, to keep secret, and NAME.pub",
		Example: "  kiln key create release",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			public, err := sign.NewKey(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s.pem and %s.pub: key %s\n", args[0], args[0], sign.KeyID(public))
			return err
		},
	}
}

func (a *app) keyTrustCommand() *cobra.Command {
	var file, name string
	cmd := &cobra.Command{
		Use:     "trust KEY.pub",
		Short:   "Add a public key to the trust file",
		Example: "  kiln key trust release.pub --name 'release 2026' --from 2026-01-01 --until 2027-01-01",
		Args:    cobra.ExactArgs(1),
	}
	trustFlag(cmd, &file)
	cmd.Flags().StringVar(&name, "name", "", "what people call the key")
	from := dateFlag(cmd, "from", "the `date` from which it signs (default: no bound)")
	until := dateFlag(cmd, "until", "the `date` from which it does not sign any more (default: no bound)")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		public, err := sign.ReadPublicKey(args[0])
		if err != nil {
			return err
		}
		k, err := sign.NewTrustedKey(name, public)
		if err != nil {
			return err
		}
		if k.From, err = from(); err != nil {
			return err
		}
		if k.Until, err = until(); err != nil {
			return err
		}
		t, err := sign.ReadTrust(file)
		if errors.Is(err, fs.ErrNotExist) {
			t, err = &sign.Trust{}, nil
		}
		if err != nil {
			return err
		}
		if !t.Add(k) {
			return fmt.Errorf("key %s is in %s already; retire or revoke it there", t.Find(k.ID), file)
		}
		if err := t.Write(file); err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.stdout, "%s: key %s added\n", file, &k)
		return err
	}
	return cmd
}

// changeKey changes a key of the trust file.
func (a *app) changeKey(file, id, done string, change func(*sign.Key) error) error {
	t, err := sign.ReadTrust(file)
	if err != nil {
		return err
	}
	k := t.Find(id)
	if k == nil {
		return fmt.Errorf("%s has no key %q; see `kiln key list`", file, id)
	}
	if err := change(k); err != nil {
		return err
	}
	if err := t.Write(file); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s: key %s %s\n", file, k, done)
	return err
}

func (a *app) keyRetireCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "retire KEY",
		Short:   "Give a key of the trust file an end: what it signed before stays good",
		Example: "  kiln key retire 'release 2026' --at 2026-07-01",
		Args:    cobra.ExactArgs(1),
	}
	trustFlag(cmd, &file)
	at := dateFlag(cmd, "at", "the `date` from which it does not sign any more (default: now)")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		end, err := at()
		if err != nil {
			return err
		}
		if end.IsZero() {
			end = time.Now().UTC().Truncate(time.Second)
		}
		return a.changeKey(file, args[0], "ends on "+end.Format(time.RFC3339), func(k *sign.Key) error {
			if !k.Until.IsZero() && k.Until.Before(end) {
				return fmt.Errorf("key %s ends on %s already", k, k.Until.Format(time.RFC3339))
			}
			k.Until = end
			return nil
		})
	}
	return cmd
}

func (a *app) keyRevokeCommand() *cobra.Command {
	var file, reason string
	cmd := &cobra.Command{
		Use:     "revoke KEY",
		Short:   "Revoke a key of the trust file: nothing that it ever signed is good",
		Example: "  kiln key revoke 'release 2026' --reason 'the laptop was stolen'",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeKey(file, args[0], "revoked", func(k *sign.Key) error {
				if !k.Revoked.IsZero() {
					return fmt.Errorf("key %s was revoked on %s", k, k.Revoked.Format(time.RFC3339))
				}
				k.Revoked, k.Reason = time.Now().UTC().Truncate(time.Second), reason
				return nil
			})
		},
	}
	trustFlag(cmd, &file)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for those who meet its signatures")
	return cmd
}

func (a *app) keyListCommand() *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Show the keys of the trust file",
		Example: "  kiln key list --trust trust.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := sign.ReadTrust(file)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(map[string]any{"format": "kiln-keys/1", "keys": t.Keys})
			}
			day := func(t time.Time) string {
				if t.IsZero() {
					return "–"
				}
				return t.Format(time.DateOnly)
			}
			table := ui.NewTable("KEY", "NAME", "STATE", "FROM", "UNTIL", "REASON")
			for i := range t.Keys {
				k := &t.Keys[i]
				table.Add(k.ID, k.Name, k.State(time.Now()), day(k.From), day(k.Until), k.Reason)
			}
			return table.Write(a.stdout, a.out)
		},
	}
	trustFlag(cmd, &file)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
