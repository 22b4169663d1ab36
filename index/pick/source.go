package pick

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/index"
)

// requestTime is how long one request to an index may take.
const requestTime = 2 * time.Minute

// Files reads the files of a project from the index at a URL or in a folder. simpleURL gives the
// repository from which to install a build, for a minor version of torch that may be empty.
// transport carries the requests.
func Files(ctx context.Context, where, project string, transport http.RoundTripper, log *slog.Logger) (files []*index.File, simpleURL func(built index.Coordinates, torch string) string, err error) {
	if strings.Contains(where, "://") {
		remote, err := index.OpenRemote(ctx, &http.Client{Transport: transport, Timeout: requestTime}, where)
		if err != nil {
			return nil, nil, err
		}
		files, err := remote.Files(ctx, project)
		return files, remote.SimpleURL, err
	}
	if info, err := os.Stat(where); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	} else if !info.IsDir() {
		return nil, nil, fmt.Errorf("index %s: neither a URL nor a folder", where)
	}
	store, err := index.Open(where, index.StoreOptions{Log: log})
	if err != nil {
		return nil, nil, err
	}
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	files, ok := catalog.View("all").Files(project)
	if !ok {
		return nil, nil, fmt.Errorf("%s in %s: %w", project, where, index.ErrNoProject)
	}
	abs, err := filepath.Abs(where)
	if err != nil {
		return nil, nil, err
	}
	base := "file://" + filepath.ToSlash(abs) + "/"
	return files, func(c index.Coordinates, torch string) string {
		for _, t := range append([]string{torch}, c.Torch...) {
			if path := c.Toolkit + "/torch" + t; catalog.View(path) != nil {
				return base + path + "/simple/"
			}
		}
		return base + "all/simple/"
	}, nil
}
