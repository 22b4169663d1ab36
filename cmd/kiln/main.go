// Command kiln builds, tests, publishes and serves GPU Python wheels and quantized
// models. Each command of the product has one file here: flags become option structs,
// packages below do the work, and this package alone prints and sets exit codes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/diag"
	children "github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
)

// Exit codes: a contract with scripts.
const (
	exitDone        = 0
	exitRowsFailed  = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	launcher.Main()
	children.Main()
	os.Exit(start())
}

// start runs the command of this process, whose environment and arguments have no secrets any more.
func start() int {
	secrets, err := secret.Main()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kiln:", err)
		return exitUsage
	}
	// All clients are made of this one.
	http.DefaultTransport.(*http.Transport).Proxy = secrets.Proxy
	return runWith(secrets, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// run is main without the process around it, so that tests can call it.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	secrets, args := secret.Collect(args)
	return runWith(secrets, args, stdin, stdout, stderr)
}

func runWith(secrets *secret.Store, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	color := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	app := &app{secrets: secrets, stdin: stdin, out: ui.Detect(stdout, color), err: ui.Detect(stderr, color)}
	out, errs := ui.NewWriter(stdout, app.out), ui.NewWriter(stderr, app.err)
	app.stdout, app.stderr = out, errs
	defer func() { _ = errors.Join(out.Flush(), errs.Flush()) }() // as of every line before, it is too late to say so
	cmd := app.command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if ctx.Err() != nil && (!app.stopped || err != nil) {
		fmt.Fprintln(app.stderr, "kiln: interrupted")
		return exitInterrupted
	}
	return app.exitCode(err)
}

// rowsFailedError ends a command that worked, of which some rows did not.
type rowsFailedError struct{ error }

// printError prints an error without anything that is known to be a secret, or looks like one: its
// text may come from elsewhere.
func (a *app) printError(err error) {
	fmt.Fprintln(a.stderr, "kiln:", a.secrets.Redactor().Text(secret.Clean(err.Error())))
}

// exitCode prints an error and says with which code to leave.
func (a *app) exitCode(err error) int {
	var list *diag.ListError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, new(rowsFailedError)):
		a.printError(err)
		return exitRowsFailed
	case errors.As(err, &list):
		// Printed with source lines where it arose.
		if n := list.Diagnostics.Count(diag.Error); n > 0 {
			fmt.Fprintf(a.stderr, "kiln: %s\n", units.Count(n, "error"))
		}
		return exitUsage
	}
	a.printError(err)
	return exitUsage
}
