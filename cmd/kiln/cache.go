package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
)

func (a *app) cacheCommand() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Look at, explain and shrink the compile cache",
		Example: `  kiln cache stats
  kiln cache explain kernel.cu demo-1.0-cp311-linux_x86_64 demo-1.0-cp313-linux_x86_64`,
	}
	cmd.PersistentFlags().StringVar(&state, "state", ".kiln", "the state `folder`")
	_ = cmd.MarkPersistentFlagDirname("state")
	cmd.AddCommand(a.cacheStatsCommand(&state), a.cacheExplainCommand(&state), a.cacheGCCommand(&state))
	return cmd
}

func (a *app) cacheStatsCommand(state *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show what was compiled and what was shared",
		Long: `Lists the rows that were built in this folder, with what their compilers did the last time, and the counters
of ccache. A compile is unique if no other row had the same result.`,
		Example: "  kiln cache stats --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stats, err := share.ReadStats(cmd.Context(), *state)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(stats)
			}
			return a.printCacheStats(stats)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) printCacheStats(stats *share.Stats) error {
	if len(stats.Rows) == 0 {
		fmt.Fprintln(a.stdout, "no compiles were recorded here")
		return nil
	}
	table := ui.NewTable("ROW", ">CALLS", ">SHARED", ">COMPILED", ">PAST THE CACHE", ">TIME")
	reasons := map[string]int{}
	for _, r := range stats.Rows {
		table.Add(r.Row, units.Number(r.Calls), units.Number(r.Hits), units.Number(r.Misses), units.Number(r.Bypassed), ui.Duration(time.Duration(r.Seconds*float64(time.Second))))
		for why, n := range r.Reasons {
			reasons[why] += n
		}
	}
	if err := table.Write(a.stdout, a.out); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "\n%s in all, %s of them different; the cache has %s\n", units.Count(stats.Calls, "compile"), units.Number(stats.Unique), units.Bytes(stats.Bytes))
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(a.stdout, "past the cache %s: %s\n", units.Count(reasons[why], "time"), why)
	}
	if c := stats.Counters; c != nil {
		fmt.Fprintf(a.stdout, "ccache: %s hits, %s misses, %s from the remote cache since it was made\n",
			units.Number(int(c["direct_cache_hit"]+c["preprocessed_cache_hit"])), units.Number(int(c["cache_miss"])), units.Number(int(c["remote_storage_hit"])))
	}
	return nil
}

// explanation is why the keys of a file differ between two rows.
type explanation struct {
	File string           `json:"file"`
	Rows [2]string        `json:"rows"`
	Keys [2]string        `json:"keys"`
	Same bool             `json:"same"`
	Diff calls.Difference `json:"difference"`
}

func (a *app) cacheExplainCommand(state *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain FILE ROW1 ROW2 | explain SPEC",
		Short: "Say which input made the compiles of a file differ between two rows, or a module of kiln jit be compiled again",
		Long: `Compares what decided about a compile in two rows, as they were built last: the compiler, the arguments, and the
bytes of every file that was read. FILE is a path below the source, or its end.

With the SPEC of a module alone it says why kiln jit would compile it again, as kiln jit --explain does.`,
		Example: `  kiln cache explain kernel.cu 'demo-*-cp311-*' 'demo-*-cp313-*'
  kiln cache explain ext.yml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return errors.New("give a file and two rows, or the spec of a module")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.explainModule(cmd.Context(), args[0], asJSON)
			}
			all, err := share.ReadCalls(*state)
			if err != nil {
				return err
			}
			e := explanation{File: args[0]}
			var compiled [2]*calls.Unit
			var rows [2]*calls.Inputs
			for i, name := range args[1:] {
				if rows[i], err = findCalls(all, name); err != nil {
					return err
				}
				unit, names := rows[i].Find(filepath.ToSlash(args[0]))
				if unit == nil {
					return noSuchFile(args[0], rows[i].Row, names)
				}
				compiled[i], e.Rows[i], e.Keys[i] = unit, rows[i].Row, unit.Key
			}
			e.File = strings.TrimPrefix(compiled[0].Source, launcher.CanonicalWork+"/source/")
			e.Same = e.Keys[0] != "" && e.Keys[0] == e.Keys[1]
			if !e.Same {
				e.Diff = calls.Explain(rows[0], rows[1], compiled[0], compiled[1])
			}
			if asJSON {
				return a.printJSON(e)
			}
			for _, line := range e.lines(compiled) {
				fmt.Fprintln(a.stdout, line)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func noSuchFile(file, row string, names []string) error {
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, file) }) {
		return fmt.Errorf("%s fits %s in %s; name one: %s", file, units.Count(len(names), "file"), row, strings.Join(names, ", "))
	}
	hint := "compiled were: " + strings.Join(names, ", ")
	if near := diag.Suggest(file, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return fmt.Errorf("%s did not compile %s\n  %s", row, file, hint)
}

// findCalls returns the calls of one row by its id or a pattern that fits one row only.
func findCalls(all []*calls.Inputs, name string) (*calls.Inputs, error) {
	ids := make([]string, len(all))
	for i, in := range all {
		ids[i] = in.Row
	}
	i, err := oneRow(ids, name, "no compiles of a row "+name+" are recorded here", "`kiln cache stats` lists the rows whose compiles were recorded")
	if err != nil {
		return nil, err
	}
	return all[i], nil
}

// lines says it for people.
func (e *explanation) lines(compiled [2]*calls.Unit) []string {
	out := []string{e.File}
	for i, row := range e.Rows {
		u := compiled[i]
		text := fmt.Sprintf("  %s: %s", row, u.Result)
		if u.Why != "" {
			text += ", " + u.Why
		}
		if u.Key != "" {
			text += ", key " + u.Key
		}
		out = append(out, text)
	}
	d := e.Diff
	switch {
	case e.Same:
		return append(out, "the keys are the same: one compile serves both")
	case d.What == "compiler":
		return append(out, "the compilers differ: "+d.Name, "  "+d.A, "  "+d.B)
	case d.What == "argument":
		return append(out, "the first argument that differs:", "  "+d.A, "  "+d.B)
	case d.What == "file":
		line := "the first file that differs: " + d.Name
		if d.More > 0 {
			line += fmt.Sprintf(" (and %s more)", units.Number(d.More))
		}
		return append(out, line, "  "+d.A, "  "+d.B)
	case e.Keys[0] == "" || e.Keys[1] == "":
		return append(out, "there is nothing to compare: a compile that goes past the cache has no key")
	}
	return append(out, "compiler, arguments and files agree: the file may have been compiled twice in a row, with other arguments")
}

func (a *app) cacheGCCommand(state *string) *cobra.Command {
	var size string
	var older time.Duration
	var modules bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what was not used for longest from the compile cache, or from the modules of kiln jit",
		Example: `  kiln cache gc --max-size 10GB
  kiln cache gc --older-than 720h
  kiln cache gc --modules --older-than 720h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if modules {
				return a.gcModules(cmd.Context(), size, older)
			}
			o := share.CleanOptions{OlderThan: older}
			if size != "" {
				n, err := units.ParseBytes(size)
				if err != nil {
					return fmt.Errorf("--max-size: %w", err)
				}
				o.MaxBytes = max(n, 1)
			}
			if size == "" && older == 0 {
				return errors.New("say what is too much: --max-size SIZE or --older-than DURATION")
			}
			before, after, err := share.Clean(cmd.Context(), *state, o)
			if errors.Is(err, share.ErrNoCache) {
				fmt.Fprintln(a.stdout, err)
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "the compile cache had %s and has %s\n", units.Bytes(before), units.Bytes(after))
			return nil
		},
	}
	cmd.Flags().StringVar(&size, "max-size", "", "how large the cache may be, such as 10GB")
	cmd.Flags().DurationVar(&older, "older-than", 0, "remove what was not used for so long, such as 720h")
	cmd.Flags().BoolVar(&modules, "modules", false, "look at the modules that kiln jit compiled and unpacked instead")
	return cmd
}
