package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attackOthers attacks servers of their own: one with few descriptors, one with a small disk.
func attackOthers(ctx context.Context, c config, dir string) (results []*result, err error) {
	for _, a := range []struct {
		name  string
		limit int
		disk  string // size of a disk
		run   func(context.Context, *target, *result) error
	}{
		{"few descriptors", 100, "", attackDescriptors},
		{"full disk", 0, "size=6m", attackDisk},
	} {
		if !c.only.MatchString(a.name) {
			continue
		}
		home := filepath.Join(dir, strings.ReplaceAll(a.name, " ", "-"))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return nil, err
		}
		if a.disk != "" {
			if err := unix.Mount("tmpfs", home, "tmpfs", 0, a.disk); err != nil {
				fmt.Fprintf(os.Stderr, "left out: %s: mount: %v\n", a.name, err)
				continue
			}
			defer func() { err = errors.Join(err, unix.Unmount(home, unix.MNT_DETACH)) }()
		}
		t := &target{c: c, dir: filepath.Join(home, "index")}
		if t.secret, err = newToken(ctx, c, t.dir, "*"); err != nil {
			return nil, err
		}
		if t.server, err = startServer(ctx, c, t.dir, a.limit); err != nil {
			return nil, err
		}
		if t.probe, err = startProber(ctx, t.url); err != nil {
			return nil, err
		}
		r, err := t.attackAll(ctx, []attack{{a.name, a.run}})
		if err == nil {
			if err := t.consistent(ctx); err != nil {
				r[0].add(false, "%v", err)
			}
		} else {
			err = errors.Join(err, t.logTail())
		}
		t.stop()
		if err != nil {
			return nil, err
		}
		results = append(results, r...)
	}
	return results, nil
}

// attackDescriptors opens more connections than the server may have, idle ones and requests.
func attackDescriptors(ctx context.Context, t *target, r *result) error {
	const name = "few-1.0-py3-none-any.whl"
	if status, text := t.upload(ctx, t.secret, name, content(name, "x")); status != http.StatusOK {
		return fmt.Errorf("upload: %d %s", status, text)
	}
	n := 400
	if t.c.short {
		n = 150
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range n {
		c, err := t.dial(ctx, 80+i%20)
		if err != nil {
			continue
		}
		conns = append(conns, c)
		switch i % 3 {
		case 1:
			_, _ = io.WriteString(c, "POST /legacy/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
		case 2:
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: ")
		}
		if i%20 == 0 {
			status, text := t.get(ctx, 200, "all/simple/few/")
			r.add(status == http.StatusOK || status == http.StatusServiceUnavailable, "%d connections: %d %s", i, status, text)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	conns = nil
	for range 5 {
		time.Sleep(t.c.seconds / 10)
		t.good(ctx, r, "all/simple/few/")
	}
	res, err := http.Get(t.metrics) //nolint:noctx // short
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	r.add(res.StatusCode == http.StatusOK, "metrics: %d", res.StatusCode)
	return nil
}

// attackDisk uploads until the disk is full and some more. What failed is not published when there
// is room again.
func attackDisk(ctx context.Context, t *target, r *result) error {
	failed, worked := map[string]bool{}, map[string]bool{}
	put := func(i int) {
		name := fmt.Sprintf("disk-1.%d-py3-none-any.whl", i)
		status, text := t.upload(ctx, t.secret, name, content(name, strings.Repeat(name, 3000+997*i%5000)))
		switch status {
		case http.StatusOK:
			worked[name] = true
		case http.StatusInsufficientStorage:
			failed[name] = true
		default:
			r.add(false, "%s: %d %s", name, status, text)
			return
		}
		r.add(true, "")
	}
	n := 80
	for i := range n {
		put(i)
	}
	if len(failed) < 5 || len(worked) < 5 {
		return fmt.Errorf("%d uploads worked and %d failed: the disk has the wrong size", len(worked), len(failed))
	}
	if err := unix.Mount("", filepath.Dir(t.dir), "", unix.MS_REMOUNT, "size=64m"); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	put(n) // completes what was cut short, if something was
	files, err := t.listed(ctx, "disk")
	if err != nil {
		return err
	}
	for _, f := range files {
		r.add(!failed[f.Filename], "%s failed and is published", f.Filename)
		delete(worked, f.Filename)
	}
	r.add(len(worked) == 0, "%d files were accepted and are not there", len(worked))
	return nil
}
