package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build/report"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/index/web"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/ui"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/publish"
)

// shutdownTime is how long downloads and uploads may go on after the server was told to stop.
const shutdownTime = 30 * time.Second

// metricsConnections is how many connections the listener of metrics has at once.
const metricsConnections = 64

type serveFlags struct {
	dir, addr, metricsAddr     string
	baseURL, title             string
	certFile, keyFile          string
	tokens, accessLog          string
	builds                     string
	readOnly, insecure         bool
	private                    bool
	maxFile, maxProject, total string
	maxUploads                 int
	maxConnections, perAddress int
	proxies                    []string
	pageAge                    time.Duration
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [FOLDER]",
		Short: "Serve an index or a folder of wheels: pages for people, the simple API for installers, uploads",
		Long: `Serves the index in a folder until it is interrupted. Installers get the simple API of every
view; people get pages with a search, coverage tables and exact install commands; twine and
uv publish upload to /legacy/ with a token of "kiln serve token create". Changes that "kiln index"
makes to the folder meanwhile are served within a second.

A folder that has wheels or source distributions in it and no index is served in the same way, as
it is: nothing is written to it, new files appear within a second, and uploads are refused.
Without a folder, it is the index in ./index, or else the wheels in ./dist.`,
		Example: "  kiln serve                              # ./index, or the wheels in ./dist\n" +
			"  kiln serve index --addr :8080\n" +
			"  kiln serve ~/wheels",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed("dir")
			switch {
			case len(args) == 1 && given:
				return errors.New("a folder and --dir: give one of them")
			case len(args) == 1:
				f.dir = args[0]
			case !given && !isDir(f.dir) && isDir("dist"):
				f.dir = "dist"
			}
			if !cmd.Flags().Changed("builds") && isFile(defaultFile) && f.local() {
				f.builds = stateFolder
			}
			return a.serve(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.addr, "addr", "localhost:8080", "`address` to listen on; :8080 is every network")
	flags.StringVar(&f.baseURL, "base-url", "", "`URL` at which users see the index, for the commands on pages (default: what the browser asks for)")
	flags.StringVar(&f.title, "title", "", "`name` of the index on its pages (default \"kiln index\")")
	flags.BoolVar(&f.readOnly, "read-only", false, "refuse uploads")
	flags.BoolVar(&f.private, "private", false, "answer nothing without a token; see \"kiln serve token create --read\"")
	flags.BoolVar(&f.insecure, "insecure-uploads", false, "accept tokens without TLS from other machines; for a server behind a proxy that does TLS")
	flags.StringVar(&f.certFile, "tls-cert", "", "certificate `file` (PEM); a renewed one is taken without a restart")
	flags.StringVar(&f.keyFile, "tls-key", "", "private key `file` (PEM)")
	flags.StringVar(&f.builds, "builds", "", "state `folder` of a project, or the project: its builds are at /builds/ (default .kiln, if there is a packages.yml and the server is private or for this machine only)")
	flags.StringVar(&f.metricsAddr, "metrics-addr", "", "`address` of a second listener with /metrics for Prometheus (default: none)")
	flags.StringVar(&f.accessLog, "access-log", "", "append one line of JSON a request to this `file`; - is standard error (default: none)")
	flags.StringVar(&f.maxFile, "max-file-size", "4 GiB", "largest `size` of an uploaded file")
	flags.StringVar(&f.maxProject, "max-project-size", "", "`size` that uploads may make of one project (default: no limit)")
	flags.StringVar(&f.total, "max-index-size", "", "`size` that uploads may make of the whole index (default: no limit)")
	flags.IntVar(&f.maxUploads, "max-uploads", 16, "uploads at once")
	flags.IntVar(&f.maxConnections, "max-connections", 2048, "connections at once, as far as the system has descriptors for them")
	flags.IntVar(&f.perAddress, "max-per-address", 256, "connections, and requests under way, of one address; an IPv6 network of 64 bits is one")
	flags.StringSliceVar(&f.proxies, "trusted-proxy", nil, "`address` or network of a proxy whose X-Forwarded-For names the client")
	flags.DurationVar(&f.pageAge, "page-age", time.Minute, "how long installers may use a page without asking again")
	f.registerFolder(cmd)
	_ = cmd.MarkFlagDirname("builds")
	_ = cmd.MarkFlagFilename("tls-cert", "pem", "crt")
	_ = cmd.MarkFlagFilename("tls-key", "pem", "key")
	cmd.AddCommand(a.serveTokenCommand(&f))
	return cmd
}

// registerFolder adds the flags that the subcommands have too.
func (f *serveFlags) registerFolder(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.dir, "dir", "index", "`folder` of the index; it is made if it does not exist")
	flags.StringVar(&f.tokens, "tokens", "", "`file` of the tokens (default: .kiln/tokens.json in the folder)")
	_ = cmd.MarkPersistentFlagDirname("dir")
}

// stateFolder is where builds of the project in this folder are.
const stateFolder = ".kiln"

// local reports whether strangers get no answer: what builds say is not for them, unless the
// operator says so.
func (f *serveFlags) local() bool {
	host, _, err := net.SplitHostPort(f.addr)
	ip := net.ParseIP(host)
	return f.private || err == nil && f.baseURL == "" && len(f.proxies) == 0 && (host == "localhost" || ip != nil && ip.IsLoopback())
}

func (f *serveFlags) openTokens() (*serve.Tokens, error) {
	path := f.tokens
	if path == "" {
		path = filepath.Join(f.dir, ".kiln", "tokens.json")
	}
	return serve.OpenTokens(path)
}

func (a *app) serve(ctx context.Context, f serveFlags) (err error) {
	if (f.certFile == "") != (f.keyFile == "") {
		return errors.New("--tls-cert and --tls-key go together")
	}
	if f.baseURL != "" && !strings.HasSuffix(f.baseURL, "/") {
		f.baseURL += "/"
	}
	opts, closeLog, err := a.serverOptions(f)
	if err != nil {
		return err
	}
	defer closeLog()
	store, err := a.openServed(f.dir)
	if err != nil {
		return err
	}
	if _, ok := store.(*index.Folder); ok {
		f.readOnly = true
		opts.ReadOnly = true
	}
	server, err := serve.New(ctx, store, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()

	listener, err := listen(ctx, f.addr)
	if err != nil {
		return err
	}
	scheme := "http"
	if f.certFile != "" {
		certificates := &certificate{certFile: f.certFile, keyFile: f.keyFile}
		if _, err := certificates.get(nil); err != nil {
			return errors.Join(err, listener.Close())
		}
		scheme = "https"
		listener = tls.NewListener(server.Limit(listener), &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificates.get, NextProtos: []string{"h2", "http/1.1"}})
	} else {
		listener = server.Listener(listener)
	}
	servers := []*http.Server{server.HTTPServer()}
	listeners := []net.Listener{listener}
	if f.metricsAddr != "" {
		l, err := listen(ctx, f.metricsAddr)
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", server.PermitAll(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { server.WriteMetrics(w) })))
		servers = append(servers, &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10})
		listeners = append(listeners, serve.LimitListener(l, metricsConnections, a.log))
	}
	a.announce(f, scheme, listeners, store, server)
	if err := serveAll(ctx, server, servers, listeners); err != nil {
		return err
	}
	a.stopped = true
	return nil
}

// servedStore is what a server serves, and where it is.
type servedStore interface {
	serve.Store
	Dir() string
}

// openServed opens an index, a folder of wheels, or a new index in a folder that is empty or does
// not exist.
func (a *app) openServed(dir string) (servedStore, error) {
	store, err := index.Open(dir, index.StoreOptions{Log: a.log})
	if err != nil || store.Exists() {
		return store, err
	}
	n, err := index.CountDistributions(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return store, nil
	case err != nil:
		return nil, err
	case n > 0:
		fmt.Fprintf(a.stderr, "reading %s in %s\n", units.Count(n, "file"), dir)
		return index.OpenFolder(dir, index.AddOptions{NamesOnly: true, Audit: (&publish.Audits{Log: a.log}).Look}, a.log)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			return nil, fmt.Errorf("%s is neither an index nor a folder of wheels: it has %s and no *.whl or *.tar.gz; "+
				"kiln index add makes an index, and an empty folder becomes one", dir, e.Name())
		}
	}
	return store, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// serveAll runs servers until ctx ends, and then lets the requests that are under way finish.
func serveAll(ctx context.Context, s *serve.Server, servers []*http.Server, listeners []net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	wait.Go(func() { s.Run(ctx) })
	for i, server := range servers {
		wait.Go(func() {
			if err := server.Serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("serve: %w", err))
			}
		})
	}
	<-ctx.Done()
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancelStop()
	for _, server := range servers {
		if err := server.Shutdown(stop); err != nil {
			_ = server.Close() // what is left is cut off
		}
	}
	wait.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// serverOptions turns flags into options. The function closes the access log.
func (a *app) serverOptions(f serveFlags) (opts serve.Options, closeLog func(), err error) {
	closeLog = func() {}
	opts = serve.Options{Private: f.private, ReadOnly: f.readOnly, InsecureUploads: f.insecure, MaxUploads: f.maxUploads, PageAge: f.pageAge, Log: a.log, MaxConnections: f.maxConnections, MaxPerAddress: f.perAddress}
	for _, limit := range []struct {
		flag  string
		value int
	}{{"max-uploads", f.maxUploads}, {"max-connections", f.maxConnections}, {"max-per-address", f.perAddress}} {
		if limit.value < 0 {
			return opts, closeLog, fmt.Errorf("--%s: %d is negative", limit.flag, limit.value)
		}
	}
	if opts.TrustedProxies, err = parseProxies(f.proxies); err != nil {
		return opts, closeLog, err
	}
	for _, size := range []struct {
		flag, text string
		to         *int64
	}{{"max-file-size", f.maxFile, &opts.MaxFileBytes}, {"max-project-size", f.maxProject, &opts.MaxProjectBytes}, {"max-index-size", f.total, &opts.MaxTotalBytes}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = units.ParseBytes(size.text); err != nil {
			return opts, closeLog, fmt.Errorf("--%s: %w", size.flag, err)
		}
	}
	if opts.Tokens, err = f.openTokens(); err != nil {
		return opts, closeLog, err
	}
	pages := web.Options{BaseURL: f.baseURL, Title: f.title, Private: f.private, Log: a.log}
	if f.builds != "" {
		if f.builds != stateFolder && !isDir(f.builds) {
			return opts, closeLog, fmt.Errorf("--builds: %s is not a folder", f.builds)
		}
		if inner := filepath.Join(f.builds, stateFolder); isDir(inner) {
			f.builds = inner
		}
		pages.Builds = report.Handler(f.builds, a.log)
	}
	if opts.Pages, err = web.Maker(pages); err != nil {
		return opts, closeLog, err
	}
	var out io.Writer
	switch f.accessLog {
	case "":
	case "-":
		out = a.stderr
	default:
		file, err := os.OpenFile(f.accessLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return opts, closeLog, fmt.Errorf("--access-log: %w", err)
		}
		out, closeLog = file, func() { _ = file.Close() }
	}
	if out != nil {
		opts.AccessLog = slog.New(slog.NewJSONHandler(out, nil))
	}
	return opts, closeLog, nil
}

// parseProxies reads addresses and networks.
func parseProxies(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		if addr, err := netip.ParseAddr(text); err == nil {
			addr = addr.Unmap().WithZone("")
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxy: %q is neither an address nor a network such as 10.0.0.0/8", text)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}

// announce says where the index is, and how to use it.
func (a *app) announce(f serveFlags, scheme string, listeners []net.Listener, store servedStore, server *serve.Server) {
	url := scheme + "://" + visibleAddr(listeners[0].Addr()) + "/"
	if f.baseURL != "" {
		url = f.baseURL
	}
	projects, files := server.Catalog().Len()
	fmt.Fprintf(a.stdout, "%s: %s, %s\n", store.Dir(), units.Count(projects, "project"), units.Count(files, "file"))
	fmt.Fprintf(a.stdout, "  pages     %s\n", url)
	if f.builds != "" {
		fmt.Fprintf(a.stdout, "  builds    %sbuilds/\n", url)
	}
	fmt.Fprintf(a.stdout, "  install   pip install PACKAGE --only-binary PACKAGE --extra-index-url %ssimple/\n", url)
	if f.private {
		fmt.Fprintln(a.stdout, "  private   with tokens of kiln serve token create --read, for user __token__; pip and uv find them in ~/.netrc")
	}
	if !f.readOnly {
		fmt.Fprintf(a.stdout, "  upload    twine upload --repository-url %slegacy/ FILE…\n", url)
	}
	if len(listeners) > 1 {
		fmt.Fprintf(a.stdout, "  metrics   http://%s/metrics\n", visibleAddr(listeners[1].Addr()))
	}
}

// visibleAddr is an address a browser on this machine can open.
func visibleAddr(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr.String()
	}
	if tcp.IP.IsUnspecified() || tcp.IP.IsLoopback() && tcp.IP.To4() != nil {
		return fmt.Sprintf("localhost:%d", tcp.Port)
	}
	return tcp.String()
}

// certificate reads a key pair and reads it again when the file changes.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	checked time.Time
	mtime   time.Time
	pair    *tls.Certificate
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && time.Since(c.checked) < 10*time.Second {
		return c.pair, nil
	}
	c.checked = time.Now()
	info, err := os.Stat(c.certFile)
	if err == nil && c.pair != nil && info.ModTime().Equal(c.mtime) {
		return c.pair, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = readKeyPair(c.certFile, c.keyFile); err == nil {
			c.pair, c.mtime = &pair, info.ModTime()
		}
	}
	if c.pair != nil {
		return c.pair, nil // a half-written renewal: the old one is used until it is whole
	}
	return nil, fmt.Errorf("certificate: %w", err)
}

func readKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := fsx.ReadFile(certFile, maxInput)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := fsx.ReadFile(keyFile, maxInput)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

func (a *app) serveTokenCommand(f *serveFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "token",
		Short:   "Make, list and revoke tokens: to upload, and to read a private index",
		Example: "  kiln serve token create --project 'flash-attn' --note ci",
	}
	cmd.AddCommand(a.tokenCreateCommand(f), a.tokenListCommand(f), a.tokenRevokeCommand(f))
	return cmd
}

func (a *app) tokenCreateCommand(f *serveFlags) *cobra.Command {
	var token serve.NewToken
	var valid time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token and print it, once",
		Long: `Prints a new token on standard output. Only its hash is stored, so that it cannot be shown again.
A running server knows it at once. Clients give it as password of the user __token__.`,
		Example: "  TWINE_PASSWORD=$(kiln serve token create --project 'exllama*' --valid 2160h)\n" +
			"  kiln serve token create --read --project '*' --note 'the team'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("valid") {
				if valid <= 0 {
					return fmt.Errorf("--valid: %v is not a time in the future", valid)
				}
				token.Expires = time.Now().Add(valid).Truncate(time.Second)
			}
			tokens, err := f.openTokens()
			if err != nil {
				return err
			}
			secret, made, err := tokens.Create(cmd.Context(), token)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(map[string]any{"secret": secret, "token": made})
			}
			fmt.Fprintf(a.stderr, "token %s for %s; it is shown only now\n", made.ID, strings.Join(made.Projects, ", "))
			_, err = fmt.Fprintln(a.stdout, secret)
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&token.ReadOnly, "read", false, "the token reads a private index, and uploads nothing")
	flags.StringSliceVar(&token.Projects, "project", nil, "project `pattern` that it is for, such as flash-attn or 'exllama*' (required; '*' is every project)")
	flags.StringVar(&token.Note, "note", "", "`text` that says whose token it is")
	flags.DurationVar(&valid, "valid", 0, "`time` after which it ends, such as 2160h (default: never)")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.MarkFlagRequired("project")
	return cmd
}

func (a *app) tokenListCommand(f *serveFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without their secrets",
		Example: "  kiln serve token list --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			tokens, err := f.openTokens()
			if err != nil {
				return err
			}
			list, err := tokens.List()
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(map[string]any{"tokens": append([]serve.Token{}, list...)})
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(a.stdout, "No tokens.")
				return err
			}
			table := ui.NewTable("ID", "FOR", "PROJECTS", "CREATED", "EXPIRES", "NOTE")
			for _, t := range list {
				expires := "never"
				if !t.Expires.IsZero() {
					expires = t.Expires.Format(time.DateOnly)
				}
				table.Add(t.ID, strings.Join(t.Scopes, " "), strings.Join(t.Projects, " "), t.Created.Format(time.DateOnly), expires, t.Note)
			}
			return table.Write(a.stdout, a.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) tokenRevokeCommand(f *serveFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID…",
		Short:   "End tokens for good; a running server knows at once",
		Example: "  kiln serve token revoke 5f3a9c01",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			tokens, err := f.openTokens()
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := tokens.Revoke(cmd.Context(), id); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
