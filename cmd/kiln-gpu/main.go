// Command kiln-gpu is the part of kiln that talks to NVIDIA GPUs: it shows the devices, checks
// kiln's kernels on one of them and measures them. Unlike kiln it needs the C library's dynamic
// loader.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/model/quant/cuda"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := newRoot(os.Stdout).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kiln-gpu:", err)
		os.Exit(exitCode(err))
	}
}

// exitCode is 3 where the machine lacks what is needed, as for kiln, and 1 for everything else.
func exitCode(err error) int {
	if errors.Is(err, cuda.ErrNotSupported) {
		return 3
	}
	return 1
}

func newRoot(out io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "kiln-gpu",
		Short:         "Check and measure kiln's kernels on an NVIDIA GPU",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.AddCommand(newProbe(), newCheck(), newBench())
	return root
}

func newProbe() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "probe",
		Short: "Show the driver, the devices and the embedded kernels",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			devices, version, err := cuda.Probe()
			if err != nil {
				return err
			}
			images, err := cuda.EmbeddedImages()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), struct {
					DriverVersion int         `json:"driver_version"`
					Devices       []cuda.Info `json:"devices"`
					Kernels       cuda.Images `json:"kernels"`
				}{version, devices, images})
			}
			fmt.Fprintf(c.OutOrStdout(), "driver: CUDA %d.%d\n", version/1000, version%1000/10)
			for _, d := range devices {
				fmt.Fprintf(c.OutOrStdout(), "device %d: %s, compute capability %d.%d, %d multiprocessors, %.1f GiB, %d MiB L2\n",
					d.Ordinal, d.Name, d.Major, d.Minor, d.Multiprocessors, float64(d.MemoryBytes)/(1<<30), d.L2Bytes>>20)
			}
			source, err := cuda.SourceHash()
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "kernels: %s, source %.12s\n", strings.Join(images.Compilers(), ", "), source)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// deviceFlags say which device and kernels to use.
type deviceFlags struct {
	ordinal int
	ptx     bool
	as      string
	kernels string
	jit     bool
	nvrtc   string
	cache   string
	blas    string
}

func (f *deviceFlags) add(c *cobra.Command) {
	c.Flags().IntVar(&f.ordinal, "device", 0, "number of the device")
	c.Flags().BoolVar(&f.ptx, "ptx", false, "use the portable kernels")
	c.Flags().StringVar(&f.as, "capability", "", "use the device as one of an older compute capability, 6.0 or 7.5 for instance")
	c.Flags().StringVar(&f.kernels, "kernels", "", "folder of compiled kernels (default: the embedded ones)")
	c.Flags().StringVar(&f.blas, "with-cublas", "", "let cuBLAS compute products of thousands of rows: auto, or the path of libcublas")
	c.Flags().BoolVar(&f.jit, "jit", false, "compile the kernels for this device with NVRTC")
	c.Flags().StringVar(&f.nvrtc, "nvrtc", "", "path of libnvrtc (default: where the loader finds it)")
	c.Flags().StringVar(&f.cache, "jit-cache", "", "folder for kernels that --jit compiled (default: the user's cache folder)")
}

func (f *deviceFlags) open() (*cuda.Device, error) {
	opts := cuda.Options{Ordinal: f.ordinal, PTX: f.ptx, BLAS: f.blas}
	if f.as != "" {
		var major, minor int
		if _, err := fmt.Sscanf(f.as, "%d.%d", &major, &minor); err != nil || minor < 0 || minor > 9 || fmt.Sprintf("%d.%d", major, minor) != f.as {
			return nil, fmt.Errorf("--capability %q: want a compute capability, 7.5 for instance", f.as)
		}
		opts.Capability = 10*major + minor
	}
	if f.kernels != "" {
		opts.Kernels = os.DirFS(f.kernels)
	}
	if f.jit {
		opts.JIT = &cuda.JIT{Library: f.nvrtc, Cache: f.cache}
		if f.cache == "" {
			if dir, err := os.UserCacheDir(); err == nil { // without one nothing is kept
				opts.JIT.Cache = filepath.Join(dir, "kiln", "kernels")
			}
		}
	}
	return cuda.Open(opts)
}
