package build

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// Limits of an sdist. The largest on the public index unpack to about 1 GB.
const (
	maxSdistFiles = 200_000
	maxSdistBytes = 16 << 30
)

// unpackSdist unpacks a source distribution (PEP 517: one folder in a tar.gz; older
// ones are zip files) into the folder to, without that one folder, and returns the
// time of its newest member. No member can get out of the folder.
func unpackSdist(name, to string) (time.Time, error) {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return time.Time{}, err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return time.Time{}, err
	}
	defer root.Close()
	var newest time.Time
	if strings.HasSuffix(name, ".zip") {
		newest, err = unpackZip(name, root)
	} else {
		newest, err = unpackTar(name, root)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("unpack %s: %w", filepath.Base(name), err)
	}
	return newest, nil
}

// member returns the name of a member without the folder that all are in; "." is that
// folder itself.
func member(name string, top *string) (string, error) {
	clean := path.Clean(strings.ReplaceAll(name, `\`, "/"))
	if path.IsAbs(clean) || !filepath.IsLocal(filepath.FromSlash(clean)) {
		return "", fmt.Errorf("member %q leads out of the folder", name)
	}
	first, rest, _ := strings.Cut(clean, "/")
	if *top == "" {
		*top = first
	}
	if first != *top {
		return "", fmt.Errorf("member %q is outside of the folder %s/: not a source distribution", name, *top)
	}
	if rest == "" {
		return ".", nil
	}
	return filepath.FromSlash(rest), nil
}

func unpackTar(name string, root *os.Root) (time.Time, error) {
	f, err := fsx.Open(name)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return time.Time{}, err
	}
	newest, top := earliest, ""
	var bytes int64
	archive := tar.NewReader(unzipped)
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return time.Time{}, err
		}
		if bytes += h.Size; n > maxSdistFiles || bytes > maxSdistBytes {
			return time.Time{}, errors.New("too large to be a source distribution")
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		target, err := member(h.Name, &top)
		if err != nil {
			return time.Time{}, err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(target, 0o777)
		case tar.TypeReg:
			err = writeFile(root, target, fs.FileMode(h.Mode)&fs.ModePerm, archive)
			if h.ModTime.After(newest) && h.ModTime.Before(time.Now()) {
				newest = h.ModTime
			}
		case tar.TypeSymlink:
			if path.IsAbs(h.Linkname) || !filepath.IsLocal(filepath.Join(filepath.Dir(target), filepath.FromSlash(h.Linkname))) {
				return time.Time{}, fmt.Errorf("link %q leads out of the folder", h.Name)
			}
			err = writeFile(root, target, fs.ModeSymlink, strings.NewReader(h.Linkname))
		default:
			err = fmt.Errorf("member %q is neither file, folder nor link", h.Name)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
	if top == "" {
		return time.Time{}, errors.New("the archive is empty")
	}
	return newest.UTC(), nil
}

func unpackZip(name string, root *os.Root) (time.Time, error) {
	archive, err := zip.OpenReader(name)
	if err != nil {
		return time.Time{}, err
	}
	defer archive.Close()
	newest, top := earliest, ""
	var bytes uint64
	if len(archive.File) > maxSdistFiles {
		return time.Time{}, errors.New("too large to be a source distribution")
	}
	for _, m := range archive.File {
		if bytes += m.UncompressedSize64; bytes > maxSdistBytes {
			return time.Time{}, errors.New("too large to be a source distribution")
		}
		target, err := member(m.Name, &top)
		if err != nil {
			return time.Time{}, err
		}
		if strings.HasSuffix(m.Name, "/") {
			if err := root.MkdirAll(target, 0o777); err != nil {
				return time.Time{}, err
			}
			continue
		}
		if !m.Mode().IsRegular() {
			return time.Time{}, fmt.Errorf("member %q is neither file nor folder", m.Name)
		}
		content, err := m.Open()
		if err != nil {
			return time.Time{}, err
		}
		err = writeFile(root, target, m.Mode(), io.LimitReader(content, int64(m.UncompressedSize64)+1))
		_ = content.Close()
		if err != nil {
			return time.Time{}, err
		}
		if m.Modified.After(newest) && m.Modified.Before(time.Now()) {
			newest = m.Modified
		}
	}
	if top == "" {
		return time.Time{}, errors.New("the archive is empty")
	}
	return newest.UTC(), nil
}
