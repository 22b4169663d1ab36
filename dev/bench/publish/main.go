// Command benchpublish measures kiln's uploads against mc cp and plain HTTP uploads of the same
// bytes to the same S3 server, in one run: many small files and few large ones. It prints
// throughputs, their ratio and the memory that kiln needed, and fails if kiln is slower than 0.9
// times mc cp or needs 100 MB.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
)

const bucket, key, secret = "bench", "benchkey", "benchsecret"

func main() {
	server := flag.String("server", ".cache/tools/versitygw", "the S3 server")
	mc := flag.String("mc", ".cache/tools/mc", "MinIO's client")
	dir := flag.String("dir", ".cache/bench", "where files and the server's data are made")
	files := flag.Int("files", 500, "files of 1 MB")
	large := flag.Int("large", 4, "files of 500 MB")
	rounds := flag.Int("rounds", 3, "rounds; the best of each counts")
	child := flag.String("upload", "", "upload this folder to the address in BENCH_URL, and print the peak memory (used by the program itself)")
	flag.Parse()
	var err error
	if *child != "" {
		err = upload(*child)
	} else {
		err = bench(*server, *mc, *dir, *files, *large, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchpublish:", err)
		os.Exit(1)
	}
}

func bench(server, mc, dir string, files, large, rounds int) (err error) {
	scratch, err := os.MkdirTemp(dir, "publish-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	data := filepath.Join(scratch, "server")
	if err := os.MkdirAll(filepath.Join(data, bucket), 0o777); err != nil {
		return err
	}
	address, stop, err := start(server, data)
	if err != nil {
		return err
	}
	defer stop()
	var missed []string
	fmt.Printf("%s, %d processors, server versitygw on the same machine and disk, 4 uploads at a time\n", runtime.Version(), runtime.NumCPU())
	for _, set := range []struct {
		name  string
		count int
		size  int64
	}{{"small", files, 1_000_000}, {"large", large, 500_000_000}} {
		if set.count == 0 {
			continue
		}
		folder := filepath.Join(scratch, set.name)
		if err := makeFiles(folder, set.count, set.size); err != nil {
			return err
		}
		total := float64(set.count) * float64(set.size)
		times := map[string][]float64{}
		var peak int64
		for range rounds {
			seconds, err := plainUpload(address, folder)
			if err != nil {
				return err
			}
			times["plain"] = append(times["plain"], seconds)
			clear(filepath.Join(data, bucket))
			if seconds, err = mcUpload(mc, address, folder, scratch); err != nil {
				return err
			}
			times["mc"] = append(times["mc"], seconds)
			clear(filepath.Join(data, bucket))
			hashing, seconds, memory, err := kilnUpload(address, folder)
			if err != nil {
				return err
			}
			times["kiln"], times["hash"], peak = append(times["kiln"], seconds), append(times["hash"], hashing), max(peak, memory)
			clear(filepath.Join(data, bucket))
		}
		plain, client, ours, hashing := slices.Min(times["plain"]), slices.Min(times["mc"]), slices.Min(times["kiln"]), slices.Min(times["hash"])
		fmt.Printf("%d × %.0f MB, best of %d\n", set.count, float64(set.size)/1e6, rounds)
		fmt.Printf("  plain PUT, nothing checked            %6.1f s %5.0f MB/s\n", plain, total/1e6/plain)
		fmt.Printf("  mc cp --recursive                     %6.1f s %5.0f MB/s\n", client, total/1e6/client)
		fmt.Printf("  kiln, every file hashed and verified  %6.1f s %5.0f MB/s: %.2f× of mc cp, %.2f× of plain; peak memory %.0f MB\n", ours, total/1e6/ours, client/ours, plain/ours, float64(peak)/1e6)
		fmt.Printf("  before that, hashing the local files  %6.1f s: %.2f× of mc cp with it\n", hashing, client/(ours+hashing))
		if client/ours < 0.9 || peak >= 100e6 {
			missed = append(missed, set.name)
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("less than 0.9 times mc cp, or 100 MB and more: %s", strings.Join(missed, ", "))
	}
	return nil
}

func clear(dir string) {
	entries, _ := os.ReadDir(dir) // nothing to clear then
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

func start(program, data string) (address string, stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	host := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--access", key, "--secret", secret, "--region", "us-east-1", "--port", host, "--quiet", "posix", data)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		cancel()
		return "", nil, err
	}
	for range 500 {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
		if err == nil {
			_ = conn.Close()
			return "http://" + host, func() { cancel(); _ = cmd.Wait() }, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	return "", nil, errors.New("the server does not answer")
}

// makeFiles writes files of random bytes.
func makeFiles(dir string, n int, size int64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	rng := rand.NewChaCha8([32]byte{1})
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file%04d.whl", i)))
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rng, size)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out, err
}

// mcUpload runs the real thing, with its defaults.
func mcUpload(program, address, dir, scratch string) (float64, error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	config := filepath.Join(scratch, "mc")
	cmd := exec.CommandContext(context.Background(), program, "--config-dir", config, "--quiet", "cp", "--recursive", dir+"/", "bench/"+bucket+"/mc/")
	cmd.Env = append(os.Environ(), fmt.Sprintf("MC_HOST_bench=http://%s:%s@%s", key, secret, u.Host))
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("mc cp: %w\n%s", err, out)
	}
	return time.Since(begin).Seconds(), nil
}

// plainUpload puts every file with one unsigned request and nothing else.
func plainUpload(address, dir string) (float64, error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	client, err := minio.New(u.Host, &minio.Options{Creds: credentials.NewStaticV4(key, secret, ""), Region: "us-east-1"})
	if err != nil {
		return 0, err
	}
	files, err := list(dir)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(4)
	for _, path := range files {
		group.Go(func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			signed, err := client.PresignedPutObject(ctx, bucket, "plain/"+filepath.Base(path), time.Hour)
			if err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, signed.String(), f)
			if err != nil {
				return err
			}
			req.ContentLength = info.Size()
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("PUT %s: %s", path, resp.Status)
			}
			return nil
		})
	}
	err = group.Wait()
	return time.Since(begin).Seconds(), err
}

// kilnUpload runs the same through package publish, in a process of its own, whose memory is
// measured.
func kilnUpload(address, dir string) (hashing, seconds float64, peak int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, 0, err
	}
	cmd := exec.CommandContext(context.Background(), self, "-upload", dir)
	cmd.Env = append(os.Environ(), "BENCH_URL="+address)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, 0, err
	}
	_, err = fmt.Sscan(string(out), &hashing, &seconds, &peak)
	return hashing, seconds, peak, err
}

func upload(dir string) error {
	target, err := publish.NewS3(publish.S3Options{Endpoint: os.Getenv("BENCH_URL"), Bucket: bucket, Region: "us-east-1", AccessKey: key, SecretKey: secret})
	if err != nil {
		return err
	}
	files, err := list(dir)
	if err != nil {
		return err
	}
	begin := time.Now()
	// As with kiln publish, every file is hashed first: what is published is what was tested.
	inv := &publish.Inventory{Units: make([]publish.Unit, len(files))}
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, path := range files {
		group.Go(func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			h := sha256.New()
			size, err := io.Copy(h, f)
			inv.Units[i] = publish.Unit{
				Row: matrix.Row{Package: "bench", Version: "1.0"}, Record: &record.Record{},
				File: publish.LocalFile{Name: filepath.Base(path), Path: path, Size: size, SHA256: hex.EncodeToString(h.Sum(nil))},
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	hashing := time.Since(begin).Seconds()
	begin = time.Now()
	result, err := publish.Run(context.WithoutCancel(ctx), target, inv, publish.Options{Owner: "bench"})
	if err != nil {
		return err
	}
	if len(result.Failed) > 0 || len(result.Uploaded) != len(files) {
		return fmt.Errorf("%d of %d files uploaded", len(result.Uploaded), len(files))
	}
	seconds := time.Since(begin).Seconds()
	fmt.Println(hashing, seconds, peakMemory())
	return nil
}

// peakMemory reads the largest size that this process had, on Linux.
func peakMemory() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb * 1024
		}
	}
	return 0
}
