package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

func TestMain(m *testing.M) {
	run.Main()
	minio.DefaultRetryUnit = time.Millisecond // the client waits once after every error, retry or not
	os.Exit(m.Run())
}

// childTask is what a publisher in a process of its own does.
type childTask struct {
	Kind, URL, Dir string // of the target
	Project, Site  string
	Steal          bool
}

func (c *childTask) target(transport http.RoundTripper) (publish.Target, error) {
	retry := publish.Retry{Tries: 4, Wait: 2 * time.Millisecond, Limited: 2 * time.Millisecond}
	switch c.Kind {
	case "github":
		return publish.NewGitHub(publish.GitHubOptions{Repository: publishtest.Repository, Token: publishtest.Token, Endpoint: c.URL, Transport: transport, Retry: retry})
	case "s3":
		return publish.NewS3(publish.S3Options{Endpoint: c.URL, Bucket: publishtest.Bucket, Region: "us-east-1", AccessKey: "testkey", SecretKey: "testsecret", Transport: transport, Retry: retry})
	}
	return publish.NewDir(c.Dir, publish.DirOptions{})
}

// do publishes and brings the index up to date.
func (c *childTask) do(ctx context.Context) error {
	target, err := c.target(nil)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(c.Project, "packages.yml"))
	if err != nil {
		return err
	}
	file, list := matrix.Parse("packages.yml", text)
	if list.HasErrors() {
		return list.Err()
	}
	inv, err := publish.ReadInventory(ctx, filepath.Join(c.Project, "dist"), file.Plan(matrix.Options{}).Rows, publish.InventoryOptions{})
	if err != nil {
		return err
	}
	result, err := publish.Run(ctx, target, inv, publish.Options{Owner: fmt.Sprintf("process %d", os.Getpid()), StealLock: c.Steal})
	if err != nil {
		return err
	}
	if len(result.Failed) > 0 {
		return result.Failed[0].Err
	}
	store, err := index.Open(c.Site, index.StoreOptions{})
	if err != nil {
		return err
	}
	releases, err := target.List(ctx, func(string) bool { return true })
	if err != nil {
		return err
	}
	_, problems, err := publish.UpdateIndex(ctx, target, releases, store, nil)
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	return err
}

// TestPublishChild is not a test: it is the publisher that others start and kill.
func TestPublishChild(t *testing.T) {
	text := os.Getenv("KILN_TEST_PUBLISH")
	if text == "" {
		t.Skip("not started by TestE2EPublish")
	}
	var task childTask
	must(t, json.Unmarshal([]byte(text), &task))
	must(t, task.do(t.Context()))
}

// start runs a publisher in a process of its own.
func (c *childTask) start(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPublishChild$")
	cmd.Env = append(os.Environ(), "KILN_TEST_PUBLISH="+string(text))
	must(t, cmd.Start())
	return cmd
}

// startS3 starts a real S3 server and returns its address.
func startS3(t testing.TB) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join("..", ".cache", "tools", "versitygw"))
	must(t, err)
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; run make e2e-publish", err)
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, publishtest.Bucket), 0o777))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	must(t, listener.Close())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // ended below, after what needs it
	cmd := exec.CommandContext(ctx, program, "--access", "testkey", "--secret", "testsecret", "--region", "us-east-1", "--port", address, "--quiet", "posix", dir)
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("the S3 server does not answer: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// front puts faults in front of a real server.
func front(t *testing.T, to string, faults *publishtest.Faults) string {
	t.Helper()
	u, err := url.Parse(to)
	must(t, err)
	proxy := httptest.NewServer(faults.Wrap(publishtest.Proxy(u)))
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// s3Objects returns what the bucket has, by its tag and name.
func s3Objects(t *testing.T, address string) func() (map[string]string, error) {
	task := childTask{Kind: "s3", URL: address}
	return func() (map[string]string, error) {
		target, err := task.target(nil)
		if err != nil {
			return nil, err
		}
		releases, err := target.List(t.Context(), func(string) bool { return true })
		out := map[string]string{}
		for _, r := range releases {
			for _, f := range r.Files {
				sum, err := sumOf(t.Context(), target, r.Tag, f.Name)
				if err != nil {
					return nil, err
				}
				out[r.Tag+"/"+f.Name] = sum
			}
		}
		return out, err
	}
}

func sumOf(ctx context.Context, target publish.Target, tag, name string) (string, error) {
	rc, err := target.Open(ctx, tag, name)
	if err != nil {
		return "", err
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	return publishtest.Sum(data), err
}

// TestE2ES3 runs the suite of all targets against a real S3 server, with faults in between.
func TestE2ES3(t *testing.T) {
	kilntest.NeedE2E(t, "publish")
	publishtest.Test(t, func(t *testing.T) *publishtest.Fixture {
		address := startS3(t)
		faults := &publishtest.Faults{}
		proxy := front(t, address, faults)
		task := childTask{Kind: "s3", URL: proxy}
		return &publishtest.Fixture{
			Open: func(t testing.TB, transport http.RoundTripper) publish.Target {
				target, err := task.target(transport)
				return open(t, target, err)
			},
			Published: s3Objects(t, address), Faults: faults,
		}
	})
}

// TestE2EPublish publishes 200 times (KILN_PUBLISHES) to a folder, a GitHub server and a real S3
// server, with random faults and with publishers that are killed: never is a file listed that is
// absent or different, never is one there twice, and in the end everything is there.
func TestE2EPublish(t *testing.T) {
	kilntest.NeedE2E(t, "publish")
	n := 200
	if text := os.Getenv("KILN_PUBLISHES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 7))
	t.Logf("seed %d", seed)
	faults := &publishtest.Faults{}
	gitHub := publishtest.NewGitHub(t, faults)
	s3 := startS3(t)
	folderDir := filepath.Join(t.TempDir(), "public")
	kinds := map[string]*struct {
		task, direct childTask
		published    func() (map[string]string, error)
		want         map[string]string
	}{
		"dir":    {task: childTask{Kind: "dir", Dir: folderDir}, published: func() (map[string]string, error) { return folder(folderDir) }},
		"github": {task: childTask{Kind: "github", URL: gitHub.URL()}, published: gitHub.Published},
		"s3":     {task: childTask{Kind: "s3", URL: front(t, s3, faults)}, published: s3Objects(t, s3)},
	}
	kills, failures := 0, 0
	for i := range n {
		name := []string{"dir", "github", "s3"}[i%3]
		k := kinds[name]
		if k.want == nil {
			k.want = map[string]string{}
			k.task.Site = filepath.Join(t.TempDir(), "site")
		}
		p := publishtest.NewProject(t, fmt.Sprintf("packages: {demo: {versions: [\"1.%d\"], matrix: [{os: debian-12, python: \"3.11\"}]}}", i), 100_000)
		inv := p.Inventory(t)
		for _, u := range inv.Units {
			tag := "v" + u.Row.Version + "/"
			k.want[tag+u.File.Name] = u.File.SHA256
			for _, s := range u.Side {
				k.want[tag+s.Name] = "" // its version of kiln differs
			}
		}
		k.task.Project = p.Dir
		done := false
		for try := range 40 {
			k.task.Steal = try > 0
			if try < 30 {
				faults.Set(publishtest.Random(rng, 4+rng.IntN(20)))
			} else {
				faults.Set(nil)
			}
			cmd := k.task.start(t)
			if try < 4 && rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
				_ = cmd.Process.Kill()
				kills++
			}
			err := cmd.Wait()
			faults.Set(nil)
			checkIndex(t, &k.task)
			if done = err == nil; done {
				break
			}
			failures++
		}
		if !done {
			t.Fatalf("publication %d to %s never ended", i, name)
		}
		got, err := k.published()
		must(t, err)
		for key, sum := range k.want {
			if got[key] == "" || sum != "" && got[key] != sum {
				t.Errorf("%s: %s is %q, want %q", name, key, got[key], sum)
			}
		}
		if t.Failed() {
			t.Fatalf("after publication %d to %s", i, name)
		}
	}
	t.Logf("%d publications, %d kills, %d runs that did not end well, %d faults", n, kills, failures, faults.Count())
}

// checkIndex compares every file that the index lists with the target.
func checkIndex(t *testing.T, task *childTask) {
	t.Helper()
	store, err := index.Open(task.Site, index.StoreOptions{})
	must(t, err)
	if !store.Exists() {
		return
	}
	catalog, err := store.Catalog(t.Context())
	must(t, err)
	target, err := task.target(nil)
	must(t, err)
	for p := range catalog.Projects() {
		// The newest are enough: the others were looked at before.
		files := p.Files
		for _, f := range files[max(0, len(files)-3):] {
			tag := "v" + f.Version().Public()
			sum, err := sumOf(t.Context(), target, tag, f.Filename)
			if err != nil || sum != f.SHA256.String() {
				t.Errorf("%s: listed as %s, but is %q, %v", f.Filename, f.SHA256, sum, err)
			}
		}
	}
}

// TestE2ETwo: two publishers at once, again and again: both succeed, or one says who has the lock.
func TestE2ETwo(t *testing.T) {
	kilntest.NeedE2E(t, "publish")
	gitHub := publishtest.NewGitHub(t, nil)
	s3 := startS3(t)
	public := filepath.Join(t.TempDir(), "public")
	tasks := []childTask{{Kind: "dir", Dir: public}, {Kind: "github", URL: gitHub.URL()}, {Kind: "s3", URL: s3}}
	published := []func() (map[string]string, error){func() (map[string]string, error) { return folder(public) }, gitHub.Published, s3Objects(t, s3)}
	both := 0
	for i := range 12 {
		p := publishtest.NewProject(t, fmt.Sprintf("packages: {demo: {versions: [\"1.%d\"], matrix: [{os: debian-12, python: [\"3.11\", \"3.12\"]}]}}", i), 200_000)
		inv := p.Inventory(t)
		k := i % len(tasks)
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				target, err := tasks[k].target(nil)
				if err == nil {
					_, err = publish.Run(t.Context(), target, inv, publish.Options{Owner: "one of two"})
				}
				errs <- err
			}()
		}
		succeeded := 0
		for range 2 {
			err := <-errs
			locked, ok := errors.AsType[*publish.LockedError](err)
			if err == nil {
				succeeded++
			} else if !ok || locked.Owner.Name != "one of two" {
				t.Errorf("%s: %v", tasks[k].Kind, err)
			}
		}
		if succeeded == 0 {
			t.Errorf("%s: no publisher succeeded", tasks[k].Kind)
		}
		both += succeeded / 2
		got, err := published[k]()
		must(t, err)
		for _, u := range inv.Units {
			if key := "v" + u.Row.Version + "/" + u.File.Name; got[key] != u.File.SHA256 {
				t.Errorf("%s: %s is %q", tasks[k].Kind, key, got[key])
			}
		}
	}
	t.Logf("both succeeded %d times of 12, otherwise one named the other", both)
}
