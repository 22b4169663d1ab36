package workflow

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
)

// Path is where GitHub looks for the workflow.
const Path = ".github/workflows/kiln.yml"

// Write writes a workflow to a file that does not exist or that kiln made. changed is false if the
// file had this text already.
func Write(name string, text []byte) (changed bool, err error) {
	file := filepath.FromSlash(name)
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		return false, nil
	} else if err == nil && !bytes.Contains(old, []byte("kiln workflow github")) {
		return false, fmt.Errorf("%s was not made by kiln\n  move it away, or give another name with --output", name)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return false, err
	}
	return true, fsx.WriteFile(file, text, 0o666)
}

// Outputs are the outputs of the job that plans: a line with the matrix of every build job.
// workflow is the text of the workflow that runs, nil if it is not known; it has as many jobs as
// its plan needed when it was made. after is that of [Options].
func Outputs(plan *matrix.Plan, after map[string]string, workflow []byte) (string, error) {
	var out strings.Builder
	for _, j := range Jobs(plan, after) {
		if workflow != nil && !bytes.Contains(workflow, []byte("\n  "+j.ID+":\n")) {
			return "", fmt.Errorf("the workflow has no job %s, which %s need\n  run `kiln workflow github --write` and commit it", j.ID, units.Count(len(j.Rows), "row"))
		}
		text, err := j.Matrix()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%s=%s\n", j.ID, text)
	}
	return out.String(), nil
}

// PlanSummary is a table of the rows that will be built, in Markdown.
func PlanSummary(plan *matrix.Plan, after map[string]string, release string) string {
	var b strings.Builder
	jobs := plan.HostedJobs()
	fmt.Fprintf(&b, "### Plan\n\n%s, %d skipped, %d not selected. Release: %s. The matrix as a page is in the artifact `plan`.\n\n| row | files | runner |\n| --- | --- | --- |\n",
		units.Count(len(jobs), "row"), len(plan.Skipped), plan.Unselected+len(plan.Rows)-len(jobs), release)
	for _, j := range jobs {
		files := "`" + strings.Join(j.Files(), "` `") + "`"
		if first := after[j.Row]; first != "" {
			files = "that of `" + first + "`, if it is proven; else " + files
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s, %s |\n", j.Row, files, strings.Trim(j.RunsOn, `[]"`), j.Sandbox)
	}
	return b.String()
}

// CheckJobs returns an error that names the rows whose jobs could not succeed, with what to set for
// them. Such jobs are not generated: a workflow that is red by construction teaches people to
// ignore red.
func CheckJobs(plan *matrix.Plan) error {
	var foreign, system []matrix.GitHubJob
	for _, j := range plan.HostedJobs() {
		switch {
		case !matrix.CanBuild(j.Platform()):
			foreign = append(foreign, j)
		case j.StandsIn() && j.Sandbox == "host":
			system = append(system, j)
		}
	}
	var problems []string
	add := func(jobs []matrix.GitHubJob, format string, args ...any) {
		if len(jobs) == 0 {
			return
		}
		more := ""
		if len(jobs) > 1 {
			more = fmt.Sprintf(" and %d more", len(jobs)-1)
		}
		problems = append(problems, jobs[0].Row+more+": "+fmt.Sprintf(format, args...))
	}
	leaveOut := func(jobs []matrix.GitHubJob, axis string, value func(*matrix.GitHubJob) string) string {
		var parts []string
		for i := range jobs {
			parts = append(parts, axis+" != "+value(&jobs[i]))
		}
		slices.Sort(parts)
		return `workflow: {rows: "` + strings.Join(slices.Compact(parts), " and ") + `"}`
	}
	add(foreign, "kiln builds rows for Linux and for Windows on x64\n  leave them out with %s", leaveOut(foreign, "os", func(j *matrix.GitHubJob) string { return j.OS }))
	var names []string
	for i := range system {
		names = append(names, system[i].OS)
	}
	slices.Sort(names)
	add(system, "no hosted runner has %s, and on another system the wheel would need another glibc\n  set workflow.runners to runners with it, or an image: for the package, or leave the rows out with %s",
		strings.Join(slices.Compact(names), ", "), leaveOut(system, "os", func(j *matrix.GitHubJob) string { return j.OS }))
	if len(problems) == 0 {
		return nil
	}
	return errors.New("some rows cannot be built by the hosted workflow\n" + strings.Join(problems, "\n"))
}

// Summary is a table of what became of rows, in Markdown.
func Summary(inv *publish.Inventory) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### Rows\n\n%d of %d are built, tested and audited.\n\n| row | state | test | GPU code | size |\n| --- | --- | --- | --- | --- |\n", inv.Count(publish.RowReady), len(inv.Rows))
	for _, r := range inv.Rows {
		test, archs, size := "", "", int64(0)
		for _, u := range inv.Units {
			if u.Row.ID == r.ID {
				test, size = u.Record.Test.Result, size+u.File.Size
				archs = cmp.Or(archs, u.Archs)
			}
		}
		state := r.State
		if r.Reason != "" {
			state += ": " + strings.NewReplacer("|", `\|`, "\n", " ").Replace(r.Reason)
		}
		sizeText := ""
		if size > 0 {
			sizeText = units.Bytes(size)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.ID, state, test, archs, sizeText)
	}
	return b.String()
}

// KeepFailures writes why rows have no record beside the records of the others: the job that
// publishes has no journal of their builds. The inventory is that of the rows, in their order.
func KeepFailures(dist string, rows []matrix.Row, inv *publish.Inventory) error {
	for i := range rows {
		state := &inv.Rows[i]
		reason := state.Reason
		switch state.State {
		case publish.RowFailed:
		case publish.RowMissing:
			reason = "the build ended before it began: " + reason
		default:
			continue // there is a record, which says so itself
		}
		failure := record.Failure{Row: rows[i].ID, Digest: rows[i].Digest, Reason: reason}
		if err := failure.Write(record.FailurePath(dist, rows[i].ID)); err != nil {
			return err
		}
	}
	return nil
}

// spareFolders are what hosted runners have and builds of wheels do not need: Android SDK, .NET,
// Haskell, the tool cache, CodeQL and the like.
var spareFolders = []string{
	"/usr/local/lib/android", "/usr/share/dotnet", "/opt/ghc", "/usr/local/.ghcup", "/opt/hostedtoolcache/CodeQL",
	"/opt/hostedtoolcache/Java_Temurin-Hotspot_jdk", "/opt/hostedtoolcache/Ruby", "/opt/hostedtoolcache/PyPy", "/usr/share/swift", "/usr/local/share/powershell",
	"/usr/local/share/chromium", "/usr/local/julia*",
}

// swapFiles take gigabytes of the disk of hosted runners. A build that needs swap is too slow to end.
var swapFiles = []string{"/mnt/swapfile", "/swapfile"}

// FreeDisk removes the spare folders, the swap files and the container images of a hosted runner and returns how many bytes of its disk were
// free before and are free after. The caller makes sure that this is a hosted runner. out gets what
// the commands print.
func FreeDisk(ctx context.Context, env []string, out io.Writer) (before, after int64, err error) {
	if before, err = fsx.FreeSpace("/"); err != nil {
		return 0, 0, err
	}
	argv := []string{"sudo", "-n", "rm", "-rf", "--"}
	bare := len(argv)
	for _, pattern := range spareFolders {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return 0, 0, err
		}
		argv = append(argv, found...)
	}
	var commands [][]string
	if len(argv) > bare {
		commands = append(commands, argv)
	}
	// Images that runners come with: rows fetch their own. Docker itself stays.
	if _, err := exec.LookPath("docker"); err == nil {
		commands = append(commands, []string{"docker", "image", "prune", "--all", "--force"})
	}
	for _, file := range swapFiles {
		if _, err := os.Stat(file); err == nil {
			commands = append(commands, []string{"sudo", "-n", "swapoff", file}, []string{"sudo", "-n", "rm", "-f", "--", file})
		}
	}
	for _, argv := range commands {
		c := run.Cmd{Argv: argv, Env: env, Stdout: out, Stderr: out}
		if _, err := c.Run(ctx); err != nil {
			return 0, 0, err
		}
	}
	after, err = fsx.FreeSpace("/")
	return before, after, err
}
