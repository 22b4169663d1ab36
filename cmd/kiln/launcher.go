package main

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/internal/fsx"
)

// launcherCommand is what kiln build runs inside environments, around the compilers. Compiling
// itself does not come here: see package launcher.
func (a *app) launcherCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "launcher", Short: "Prepare and read compiler launchers inside build environments", Hidden: true,
		Example: "  kiln launcher setup options.json found.json",
	}
	setup := &cobra.Command{
		Use:     "setup OPTIONS OUTPUT",
		Short:   "Find compilers, put links before them, and write what was found",
		Example: "  kiln launcher setup options.json found.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := fsx.ReadFile(args[0], maxInput)
			if err != nil {
				return err
			}
			var opts share.CompilerOptions
			if err := json.Unmarshal(text, &opts); err != nil {
				return err
			}
			found, err := share.FindCompilers(cmd.Context(), opts)
			if err != nil {
				return err
			}
			return writeJSON(args[1], found)
		},
	}
	inputs := &cobra.Command{
		Use:     "inputs CONFIG OUTPUT",
		Short:   "Digest what the compilers of a row have read",
		Example: "  kiln launcher inputs launcher.json inputs.json",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			config, err := launcher.ReadConfig(args[0])
			if err != nil {
				return err
			}
			in, err := calls.Collect(config)
			if err != nil {
				return err
			}
			return writeJSON(args[1], in)
		},
	}
	cmd.AddCommand(setup, inputs)
	return cmd
}

func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return fsx.WriteFile(path, append(text, '\n'), 0o666)
}
