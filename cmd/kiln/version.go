package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/compat"
)

// version is set by the linker, and released for the programs of a release: others of that version
// have other bytes.
var version, released string

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of kiln and of its compatibility tables",
		Example: "  kiln version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := map[string]string{
				"version": kilnVersion(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				"compat": compat.Default().Date(),
			}
			if asJSON {
				return a.printJSON(v)
			}
			_, err := fmt.Fprintf(a.stdout, "kiln %s (%s, %s), compatibility tables of %s\n", v["version"], v["platform"], v["go"], v["compat"])
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// kilnVersion returns the linked version, else what the Go toolchain recorded.
func kilnVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" && info.Main.Version != "(devel)" {
		return cmp.Or(info.Main.Version, "devel")
	}
	return cmp.Or(version, "devel")
}
