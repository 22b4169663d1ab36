package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/machine"
)

// maxInput bounds the texts that users give: configurations, tables, reports.
const maxInput = 256 << 20

// app is what every command shares: where to write, and the global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	out, err       ui.Terminal
	log            *slog.Logger

	// lookAt is the machine that commands look at; nil means this one.
	lookAt *machine.Host

	// secrets are the credentials of this run.
	secrets *secret.Store
	// stopped says that a command ran until it was told to end, as it should, and ended well.
	stopped bool
}

// command builds the whole command tree.
func (a *app) command() *cobra.Command {
	var dir, logLevel string
	root := &cobra.Command{
		Use:   "kiln",
		Short: "Build, ship and run GPU Python packages and quantized models",
		Long: `kiln takes GPU Python packages and quantized models from source to something a
stranger can install and run.`,
		Example:       "  kiln plan -f packages.yml",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if err := a.setLog(logLevel); err != nil {
				return err
			}
			if dir == "" {
				return nil
			}
			if err := os.Chdir(dir); err != nil {
				return fmt.Errorf("-C: %w", err)
			}
			return nil
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\n  see `%s --help`", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVarP(&dir, "directory", "C", "", "work in this `folder`")
	flags.StringVar(&logLevel, "log-level", "warn", "how much to log: debug, info, warn or error")
	_ = root.MarkPersistentFlagDirname("directory")
	complete(root, "log-level", "debug", "info", "warn", "error")
	root.AddCommand(a.initCommand(), a.planCommand(), a.buildCommand(), a.statusCommand(), a.logsCommand(), a.shellCommand(), a.testCommand(), a.auditCommand(), a.publishCommand(), a.verifyCommand(), a.keyCommand(), a.workflowCommand(),
		a.indexCommand(), a.serveCommand(), a.pickCommand(), a.doctorCommand(), a.jitCommand(), a.modelCommand(), a.quantCommand(), a.schemaCommand(), a.cacheCommand(), a.launcherCommand(), a.slurmWorkerCommand(), a.commandsCommand(), a.versionCommand())
	return root
}

// host is the machine that commands look at.
func (a *app) host() *machine.Host {
	if a.lookAt != nil {
		return a.lookAt
	}
	return machine.Local(os.Environ())
}

// setLog makes the logger: coloured on a terminal, JSON lines otherwise.
func (a *app) setLog(name string) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("--log-level %q: use debug, info, warn or error", name)
	}
	if a.err.Color {
		a.log = slog.New(tint.NewTextHandler(a.stderr, &tint.Options{Level: level}))
	} else {
		a.log = slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: level}))
	}
	return nil
}

// printJSON writes a value for machines.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printDiagnostics shows what is to be said about files, with their source lines.
func (a *app) printDiagnostics(list diag.List, sources map[string][]byte) {
	shown := map[string][]byte{}
	for name, text := range sources {
		shown[name] = secret.Mask(text)
	}
	p := diag.Printer{Sources: shown, Color: a.err.Color}
	_ = p.Print(a.stderr, list) // nowhere left to report to
}

// complete offers fixed words for a flag in shell completion.
func complete(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// commaList splits a flag such as "3.12, 3.13" into its values.
func commaList(s string) []string {
	var out []string
	for v := range strings.SplitSeq(s, ",") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}
