package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

func (a *app) indexExportCommand() *cobra.Command {
	var dir, view, version, format, root string
	cmd := &cobra.Command{
		Use:   "export PROJECT",
		Short: "Print a requirements file with hashes, or a lock file, for one version in a view",
		Long: `Prints the wheels of one version of a project, the newest unless --version says otherwise, in a form that
installers check hashes with: a requirements file, or a lock file (pylock.toml, PEP 751). kiln serve has
the same at /VIEW/requirements/PROJECT.txt and /VIEW/pylock.PROJECT.toml.`,
		Example: `  kiln index export flash-attn --dir site --view cu128/torch2.9 --url https://wheels.example.org/ > requirements.txt
  kiln index export flash-attn --dir site --view cu128/torch2.9 --url https://wheels.example.org/ --format pylock > pylock.toml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "requirements" && format != "pylock" {
				return fmt.Errorf("--format %q: use requirements or pylock", format)
			}
			store, err := a.openIndex(dir)
			if err != nil {
				return err
			}
			catalog, err := store.Catalog(cmd.Context())
			if err != nil {
				return err
			}
			v := catalog.View(viewPath(view))
			if v == nil {
				return fmt.Errorf("the index has no view %q\n  `kiln index list --views` lists them", view)
			}
			project := wheel.NormalizeName(args[0])
			files, err := v.Pin(project, version)
			if err != nil {
				return err
			}
			base := baseURL(root)
			out, err := v.AppendPylock(nil, base, project, files)
			if err != nil {
				return fmt.Errorf("--url: %w", err)
			}
			if format == "requirements" {
				out = []byte(index.InstallLines(project, v.URL(base), files...).Requirements)
			}
			_, err = a.stdout.Write(out)
			return err
		},
	}
	indexDir(cmd, &dir)
	cmd.Flags().StringVar(&view, "view", "", "the `view`, such as cu128/torch2.9 (default: that of /simple/)")
	cmd.Flags().StringVar(&version, "version", "", "the `version`, with or without its label (default: the newest)")
	cmd.Flags().StringVar(&format, "format", "requirements", "requirements or pylock")
	cmd.Flags().StringVar(&root, "url", "", "the `URL` of the root of the index (required)")
	_ = cmd.MarkFlagRequired("url")
	complete(cmd, "format", "requirements", "pylock")
	return cmd
}
