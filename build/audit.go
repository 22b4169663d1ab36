package build

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/matrix"
)

// auditWheel reads the wheel's binaries and compares them with the row and with the very
// torch it was built against. An error of the audit fails the row.
func auditWheel(ctx context.Context, a *attempt) error {
	var file string
	for _, f := range a.files {
		if strings.HasSuffix(f, ".whl") {
			file = f
		}
	}
	if a.proven {
		return skip("the wheel was audited for %s", a.record.Reuse.Row)
	}
	if file == "" || a.given != "" {
		return skip("there is no wheel of a row")
	}
	opts := audit.Options{Python: a.Row.Python, TorchStable: a.Row.TorchStable, SameCUDA: a.Row.CUDA != "", Severity: a.severities(), TempDir: a.temp()}
	var err error
	switch {
	case a.Row.Kind == matrix.KindSdist:
	case a.Row.CUDA != "":
		if opts.Archs, err = compat.ParseArchList(a.Row.Arch); err != nil {
			return err
		}
	case a.Row.ROCm != "" && a.Row.Arch != "":
		if opts.Gfx, err = compat.ParseGfxList(a.Row.Arch); err != nil {
			return err
		}
	}
	if opts.Torch, err = a.torchSnapshot(ctx); err != nil {
		return err
	}
	if opts.Torch == nil && a.Settings.TorchSource.Kind != "index" {
		opts.NoTorch = true
		a.warn("symbols were not compared: the torch of the image could not be read from outside")
	}
	if opts.Torch != nil {
		opts.BuiltFor = opts.Torch.Version
	}
	report, err := audit.Check(ctx, file, opts)
	if err != nil {
		return err
	}
	a.record.Audit = report
	for _, f := range report.Findings {
		fmt.Fprintf(a.log, "%s: %s: %s\n", f.Severity, f.Rule, f.Message)
		for _, d := range f.Details {
			fmt.Fprintf(a.log, "    %s\n", d)
		}
		if f.Severity == audit.Warning {
			a.record.Warnings = append(a.record.Warnings, f.Rule+": "+f.Message)
		}
	}
	if report.Worst() == audit.Error {
		f := report.Findings[0] // worst first
		detail := f.Message
		if len(f.Details) > 0 {
			detail += ": " + strings.Join(f.Details[:min(3, len(f.Details))], ", ")
		}
		return fault("audit-"+f.Rule, "the wheel will not do what it promises", f.Fix+"\nif that is meant, set audit: {"+f.Rule+": warning} in packages.yml", "%s", detail)
	}
	return nil
}

// torchSnapshot reads the symbols of the torch in the build environment. One that only
// the image has is read in there, by this very program: it is static and runs anywhere.
func (a *attempt) torchSnapshot(ctx context.Context) (*audit.Snapshot, error) {
	if len(a.Torch) == 0 || a.facts.Torch == nil || a.box == nil {
		return nil, nil //nolint:nilnil // nothing to compare with
	}
	if site, err := a.hostSitePackages(); err == nil {
		dir := filepath.Join(site, "torch")
		if _, err := os.Stat(dir); err == nil {
			return audit.TakeSnapshot(ctx, dir, audit.SnapshotOptions{})
		}
	}
	if a.builder.Kiln == "" {
		return nil, nil //nolint:nilnil // the audit takes what it knows of that version, if torch is a published one
	}
	out := filepath.Join(a.work, "snapshot")
	if err := os.MkdirAll(out, 0o777); err != nil {
		return nil, err
	}
	env := sortedEnv(a.baseEnv(a.box))
	argv := []string{a.box.Inside(a.builder.Kiln), "audit", "snapshot", path.Dir(a.facts.Torch.File), "-o", a.box.Inside(out)}
	if _, err := a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.work, Env: env}); err != nil {
		return nil, err
	}
	made, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || len(made) != 1 {
		return nil, fmt.Errorf("snapshot of torch: want one file, got %d", len(made))
	}
	return audit.OpenSnapshot(ctx, made[0], audit.SnapshotOptions{})
}

// severities are the rules that packages.yml judges otherwise; their names were checked
// before the build began.
func (a *attempt) severities() map[string]audit.Severity {
	list := make([]string, 0, len(a.Settings.Audit))
	for rule, severity := range a.Settings.Audit {
		list = append(list, rule+"="+severity)
	}
	out, _ := audit.ParseSeverities(list)
	if _, judged := out[audit.RuleArchMissing]; !judged && !a.Settings.ArchWritten {
		// kiln's default list was not asked for: a package may have reasons to build for fewer GPUs.
		out[audit.RuleArchMissing] = audit.Warning
	}
	return out
}

// checkSeverities refuses rules that do not exist.
func checkSeverities(settings map[string]string) error {
	list := make([]string, 0, len(settings))
	for rule, severity := range settings {
		list = append(list, rule+"="+severity)
	}
	_, err := audit.ParseSeverities(list)
	return err
}
