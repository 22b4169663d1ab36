package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/model/exl2"
)

func (a *app) modelReshardCommand(links *exl2.Links) *cobra.Command {
	var out, size, names, hash string
	var dryRun, replace, asJSON bool
	cmd := &cobra.Command{
		Use:   "reshard FOLDER",
		Short: "Divide a model into shards of another size",
		Long: `Copies the tensors of any model in safetensors files, quantized or not, into shards of
another size, with a correct index. Without --out the folder itself is replaced, whole and in one
step, when everything is on disk; until then it is as it was, and needs as much space again. Run
again after an interruption, it goes on where it stopped.`,
		Example: `  kiln model reshard llama-3-8b --shard-size "4 GB"
  kiln model reshard llama-3-8b --shard-size none --out llama-3-8b-single`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := shardBytes(size)
			if err != nil {
				return err
			}
			opts := exl2.ReshardOptions{Out: out, ShardBytes: bytes}
			if opts.Names, err = shardNames(names); err != nil {
				return err
			}
			if replace && out == "" {
				return errors.New("--replace is about the folder of --out; without --out the model's own folder is replaced")
			}
			opts.Links = *links
			p, err := exl2.PlanReshard(cmd.Context(), args[0], opts)
			if err != nil {
				return a.printProblems(err, asJSON)
			}
			noHash := p.ManifestPath == "" // nothing records them
			switch hash {
			case "on":
				noHash = false
			case "off":
				noHash = true
			case "":
			default:
				return fmt.Errorf("--hash %q: use on or off", hash)
			}
			if dryRun {
				if asJSON {
					return a.printJSON(p)
				}
				return p.WriteText(a.stdout)
			}
			for _, n := range p.Notices {
				fmt.Fprintln(a.stderr, "warning:", n)
			}
			progress := ui.NewProgress(a.stderr, a.err, filepath.Base(p.Out))
			result, err := exl2.Write(cmd.Context(), p, exl2.WriteOptions{
				NoHash: noHash, Replace: replace, Log: a.log,
				Progress: func(p exl2.Progress) { progress.Set(p.Done, p.Total) },
			})
			progress.Close()
			if err != nil {
				return a.printProblems(err, asJSON)
			}
			if asJSON {
				return a.printJSON(result)
			}
			if result.Unchanged {
				_, err := fmt.Fprintf(a.stdout, "%s: already in %s of this size, nothing to do\n", result.Out, units.Count(result.Shards, "shard"))
				return err
			}
			return a.printWritten(result)
		},
	}
	cmd.Flags().StringVar(&size, "shard-size", "", "largest `size` of the tensors of a shard, such as \"4 GB\", or \"none\" (required)")
	cmd.Flags().StringVar(&out, "out", "", "the `folder` to write (default: the model's own, which is replaced)")
	cmd.Flags().StringVar(&names, "names", "", "how shards are named: model or output (default model)")
	cmd.Flags().StringVar(&hash, "hash", "", "whether to compute SHA-256 digests, and compare those of the manifest: on or off (default: on with a manifest)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the plan and write nothing")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace an existing folder of --out, whole and in one step")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagRequired("shard-size")
	_ = cmd.MarkFlagDirname("out")
	complete(cmd, "names", string(exl2.ModelNames), string(exl2.OutputNames))
	complete(cmd, "hash", "on", "off")
	return cmd
}
