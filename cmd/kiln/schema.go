package main

import (
	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/matrix/schema"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of packages.yml",
		Long: `Prints the JSON Schema (draft 2020-12) of packages.yml, for editors that complete and
check YAML. Put this line at the top of packages.yml to use a saved copy:

  # yaml-language-server: $schema=packages.schema.json`,
		Example: "  kiln schema > packages.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := a.stdout.Write(schema.Packages)
			return err
		},
	}
}
