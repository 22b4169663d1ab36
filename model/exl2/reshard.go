package exl2

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/model/safetensors"
)

// Resharded is the mode of a plan by [PlanReshard].
const Resharded Mode = "reshard"

// ReshardOptions says how a model is cut anew.
type ReshardOptions struct {
	// Out is the folder to write. Empty means in place: the model's folder is replaced, whole and
	// in one step, and keeps everything in it that is not a shard.
	Out string
	// ShardBytes limits the tensor bytes of a shard; negative means one shard.
	ShardBytes int64
	// Names is ModelNames unless set. A single shard has no number.
	Names Names
	Links Links
}

// PlanReshard plans other shards for a model in safetensors files, quantized or not. Tensors are
// copied as they are, in the natural order of their names, so that the result depends on the
// tensors and the limit alone and not on how they were divided before. The model's manifest, if it
// has one, is made anew; data that is not what it says is an error of [Write], unless hashing is
// off.
//
// The files of the model are those that its index names; without an index, or with one that
// belongs to other files, all *.safetensors of the folder. Everything that is wrong is in the
// error, as [Problems].
func PlanReshard(ctx context.Context, dir string, opts ReshardOptions) (*Plan, error) {
	if opts.ShardBytes == 0 {
		return nil, errors.New("plan: no shard size")
	}
	m, err := openFolder(ctx, dir, opts.Links)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	defer m.close()
	p := &Plan{
		Mode: Resharded, Out: opts.Out, ShardBytes: opts.ShardBytes, InPlace: opts.Out == "",
		Architecture: m.architecture(dir), Notices: m.notices,
	}
	if p.ShardBytes < 0 {
		p.ShardBytes = 1 << 62
	}
	ps := append(Problems(nil), m.problems...)
	if p.InPlace {
		p.Out = dir
		info, err := os.Stat(dir)
		if err != nil {
			return nil, err
		}
		p.DirMode = info.Mode().Perm()
	} else if err := checkApart(opts.Out, dir); err != nil {
		ps.add(BadOutput, opts.Out, "", "%v", err)
	}
	ps = append(ps, m.settleDuplicates(p)...)
	if err := ps.Err(); err != nil {
		return nil, err
	}
	if err := p.readManifest(dir, opts.Links); err != nil {
		return nil, err
	}
	if err := p.cut(m, cmp.Or(opts.Names, ModelNames)); err != nil {
		return nil, err
	}
	if err := p.addOthers(m, dir).Err(); err != nil {
		return nil, err
	}
	for _, s := range p.Shards {
		p.Bytes += s.Size
	}
	for _, f := range p.Files {
		p.Bytes += f.Size
	}
	p.Unchanged = p.InPlace && p.same(m)
	return p, nil
}

// checkApart refuses two folders of which one holds the other.
func checkApart(a, b string) error {
	if err := checkOut(a, b); err != nil {
		return err
	}
	if err := checkOut(b, a); err != nil {
		return errors.New("the output folder is inside of the model's folder")
	}
	return nil
}

// folder is a model in any layout: the files that belong to it, and those that do not.
type folder struct {
	modelDir
	kept    []string // tensor files that the index does not name
	notices []string
	twice   []duplicate
}

// duplicate is a name that is in two files.
type duplicate struct{ first, second sourceTensor }

// openFolder reads the headers of a model.
func openFolder(ctx context.Context, dir string, links Links) (*folder, error) {
	files, others, err := scanModel(ctx, dir, links, 2*runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	m := &folder{modelDir: modelDir{links: links, others: others, files: map[int]*os.File{}}}
	if files, err = m.choose(dir, files); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("no *.safetensors file")
	}
	m.index = &sourceIndex{files: files, byName: map[string]int{}}
	for i, f := range files {
		if f.err != nil {
			m.problems.add(BadFile, f.input.Path, "", "%v", f.err)
			continue
		}
		for _, t := range f.header.Tensors {
			st := sourceTensor{Tensor: t, original: t.Name, file: i}
			if at, dup := m.index.byName[t.Name]; dup {
				m.twice = append(m.twice, duplicate{m.index.list[at], st})
				continue
			}
			m.index.byName[t.Name] = len(m.index.list)
			m.index.list = append(m.index.list, st)
		}
	}
	return m, nil
}

// choose returns the files that the index names, if there is one that belongs to the folder.
func (m *folder) choose(dir string, files []scanned) ([]scanned, error) {
	text, err := m.links.readSmall(filepath.Join(dir, IndexFile), safetensors.MaxHeaderSize)
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	var index *safetensors.Index
	if err == nil {
		index, err = safetensors.ParseIndex(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", IndexFile, err)
	}
	var chosen []scanned
	here := map[string]bool{}
	listed := index.Files()
	for _, f := range files {
		name := filepath.Base(f.input.Path)
		if !slices.Contains(listed, name) {
			m.kept = append(m.kept, name)
			continue
		}
		here[name] = f.header != nil // one that cannot be read is a problem of its own
		chosen = append(chosen, f)
	}
	if len(chosen) == 0 {
		m.kept = nil
		m.notices = append(m.notices, IndexFile+" names none of the files here and is ignored")
		return files, nil
	}
	for _, name := range listed {
		if _, ok := here[name]; !ok {
			m.problems.add(MissingFile, filepath.Join(dir, name), "", "%s names it", IndexFile)
		}
	}
	for _, f := range chosen {
		if f.header != nil {
			for _, t := range f.header.Tensors {
				delete(index.WeightMap, t.Name)
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(index.WeightMap), compareNatural) {
		if file := index.WeightMap[name]; here[file] {
			m.problems.add(MissingTensor, filepath.Join(dir, file), name, "%s says that it is here", IndexFile)
		}
	}
	if len(m.kept) > 0 {
		m.notices = append(m.notices, fmt.Sprintf("%s does not name %s; left as it is", IndexFile, strings.Join(m.kept, ", ")))
	}
	return chosen, nil
}

// architecture is what config.json says, or empty.
func (m *folder) architecture(dir string) string {
	var info Info
	if config, err := m.links.readSmall(filepath.Join(dir, ConfigFile), maxConfigBytes); err == nil {
		info.readConfig(config)
	}
	return info.Architecture
}

// settleDuplicates accepts a tensor that is in two files with the same content.
func (m *folder) settleDuplicates(p *Plan) (ps Problems) {
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for _, d := range m.twice {
		name := d.first.Name
		first, second := filepath.Base(m.index.files[d.first.file].input.Path), filepath.Base(m.index.files[d.second.file].input.Path)
		same := d.first.DType == d.second.DType && slices.Equal(d.first.Shape, d.second.Shape)
		if same {
			x, err := m.open(&d.first)
			var y io.Reader
			if err == nil {
				y, err = m.open(&d.second)
			}
			if err == nil {
				same, err = equal(x, y, a, b)
			}
			if err != nil {
				ps.add(BadFile, "", name, "%v", err)
				continue
			}
		}
		if !same {
			ps.add(Mismatch, second, name, "is in %s too, with other content; remove the one that does not belong to the model", first)
			continue
		}
		p.Notices = append(p.Notices, fmt.Sprintf("%s is in %s and in %s with the same content, and is written once", name, first, second))
	}
	return ps
}

// equal compares two readers of the same length.
func equal(x, y io.Reader, a, b []byte) (bool, error) {
	for {
		n, err := io.ReadFull(x, a)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return false, err
		}
		if _, err := io.ReadFull(y, b[:n]); err != nil {
			return false, err
		}
		if !bytes.Equal(a[:n], b[:n]) {
			return false, nil
		}
		if n < len(a) {
			return true, nil
		}
	}
}

// readManifest takes the digests that tensors must have, and makes the plan write a new manifest.
func (p *Plan) readManifest(dir string, links Links) error {
	path := filepath.Join(dir, ManifestName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m, _, err := readManifest(path, links)
	if err != nil {
		return err
	}
	p.ManifestPath, p.manifest = ManifestName, m
	return nil
}

// cut divides the tensors into shards.
func (p *Plan) cut(m *folder, names Names) error {
	if names != ModelNames && names != OutputNames {
		return fmt.Errorf("plan: unknown names %q, want %s or %s", names, ModelNames, OutputNames)
	}
	digests := map[string]string{}
	if p.manifest != nil {
		for _, t := range p.manifest.Tensors {
			digests[t.Name] = t.SHA256
		}
	}
	for _, f := range m.index.files {
		p.Inputs = append(p.Inputs, f.input)
		for key, value := range f.header.Metadata {
			if p.Metadata == nil {
				p.Metadata = map[string]string{}
			}
			if old, there := p.Metadata[key]; there && old != value {
				p.Notices = append(p.Notices, fmt.Sprintf("the files say %q and %q about %s; the first is kept", old, value, key))
				continue
			}
			p.Metadata[key] = value
		}
	}
	tensors := slices.Clone(m.index.list)
	slices.SortFunc(tensors, func(a, b sourceTensor) int { return compareNatural(a.Name, b.Name) })
	items := make([]packItem, len(tensors))
	for i, t := range tensors {
		items[i] = packItem{i, t.Size}
	}
	shards := packInOrder(items, p.ShardBytes)
	for i, ids := range shards {
		s := Shard{Name: safetensors.ShardName(string(names), i+1, len(shards))}
		if t := tensors[ids[0]]; t.Size > p.ShardBytes {
			p.Notices = append(p.Notices, fmt.Sprintf("%s has %d bytes, more than a shard of %d, and gets a shard of its own", t.Name, t.Size, p.ShardBytes))
		}
		for _, id := range ids {
			t := &tensors[id]
			c := copied(t.Tensor, m.index.files[t.file].header, t.file)
			c.SHA256 = digests[t.Name]
			s.Tensors = append(s.Tensors, PlannedTensor{Tensor: c})
			p.TensorBytes += t.Size
		}
		if err := p.layOut(&s); err != nil {
			return fmt.Errorf("lay out %s: %w", s.Name, err)
		}
		p.Shards = append(p.Shards, s)
	}
	return nil
}

// compareNatural compares names by their parts, and digits by the number they are: layer 2 comes
// before layer 10.
func compareNatural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		m, n := digits(x), digits(y)
		if m == 0 || n == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		i, j := strings.TrimLeft(x[:m], "0"), strings.TrimLeft(y[:n], "0")
		if c := cmp.Or(cmp.Compare(len(i), len(j)), strings.Compare(i, j)); c != 0 {
			return c
		}
		x, y = x[m:], y[n:]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
}

// digits counts the digits at the start of s.
func digits(s string) int {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return i
		}
	}
	return len(s)
}

// addOthers plans everything in the folder that is not a shard of the model.
func (p *Plan) addOthers(m *folder, dir string) (ps Problems) {
	taken := map[string]bool{IndexFile: true, ManifestName: true, ManifestName + SignatureSuffix: true}
	for _, f := range m.index.files {
		taken[filepath.Base(f.input.Path)] = true
	}
	shards := map[string]bool{}
	for _, s := range p.Shards {
		shards[s.Name] = true
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		top := filepath.Base(name) == name
		switch {
		case top && taken[name]:
			return nil
		case top && shards[name]:
			ps.add(BadOutput, path, "", "is no part of the model and has the name of a new shard; move it away, or choose other names")
		case p.InPlace:
			return p.keep(path, name, e, m.links)
		case e.IsDir() && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir // of version control, and caches
		case !e.IsDir():
			ps = append(ps, p.copyOther(path, name, m.links)...)
		}
		return nil
	})
	if err != nil {
		ps.add(BadFile, dir, "", "%v", reason(err))
	}
	if len(p.Shards) > 1 {
		p.addContent(IndexFile, actionIndex, p.index(), 0o644)
	}
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return ps
}

// keep plans another name for a file of the folder that is about to be replaced.
func (p *Plan) keep(path, name string, e fs.DirEntry, links Links) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	f := File{Name: filepath.ToSlash(name), Action: actionLink, Mode: info.Mode(), link: path, unlisted: filepath.Base(name) != name}
	switch {
	case info.Mode().IsRegular():
		f.Size = info.Size()
	case info.IsDir():
		f.unlisted = true
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err := links.stat(path); err == nil {
			f.Size = target.Size()
		} else {
			f.unlisted = true
		}
	default:
		return fmt.Errorf("%s: %w", name, fsx.CheckRegular(info))
	}
	p.Files = append(p.Files, f)
	return nil
}

// copyOther plans a copy of a file.
func (p *Plan) copyOther(path, name string, links Links) (ps Problems) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil // a link to a folder
	}
	info, err := links.stat(path)
	if err != nil {
		ps.add(BadFile, path, "", "%v", err)
		return ps
	}
	p.Inputs = append(p.Inputs, Input{Path: path, Name: "model/" + filepath.ToSlash(name), Size: info.Size(), ModTime: info.ModTime(), ID: fileID(path)})
	p.Files = append(p.Files, File{
		Name: filepath.ToSlash(name), Action: actionCopy, Size: info.Size(), Mode: info.Mode().Perm(), Input: len(p.Inputs) - 1,
		unlisted: filepath.Base(name) != name,
	})
	return nil
}

// same reports whether the model is divided as planned already.
func (p *Plan) same(m *folder) bool {
	if len(p.Shards) != len(m.index.files) {
		return false
	}
	for i := range p.Shards {
		s, f := &p.Shards[i], &m.index.files[i]
		header, err := p.shardHeader(s)
		sum := sha256.Sum256(header)
		if err != nil || filepath.Base(f.input.Path) != s.Name || f.input.Size != s.Size || f.input.HeaderSHA256 != hex.EncodeToString(sum[:]) {
			return false
		}
	}
	want := []byte(nil)
	if i := slices.IndexFunc(p.Files, func(f File) bool { return f.Action == actionIndex }); i >= 0 {
		want = p.Files[i].content
	}
	got, err := m.links.readSmall(filepath.Join(p.Out, IndexFile), safetensors.MaxHeaderSize)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err == nil && bytes.Equal(got, want)
}

// compare checks the digests of a written shard against those that the tensors must have.
func (s *Shard) compare(rec *shardRecord) error {
	var ps Problems
	for i, sum := range rec.Tensors {
		if want := s.Tensors[i].SHA256; want != "" && want != sum {
			ps.add(Mismatch, s.Tensors[i].From.Name, "", "sha256 %s, but %s says %s: the model was changed or damaged", sum, ManifestName, want)
		}
	}
	return ps.Err()
}

// link gives a file of the folder that is about to be replaced another name in the new one, and
// returns its digest if the manifest wants one.
func (w *writer) link(f *File) (sum string, err error) {
	path, err := w.place(f)
	if err != nil {
		return "", err
	}
	switch {
	case f.Mode.IsDir():
		if err := os.Mkdir(path, 0o700); err != nil {
			return "", err
		}
		return "", os.Chmod(path, f.Mode.Perm()|0o700)
	case f.Mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(f.link)
		if err == nil {
			err = os.Symlink(target, path)
		}
		if err != nil {
			return "", err
		}
	default:
		if os.Link(f.link, path) != nil { // not all file systems can
			if err := copyFile(path, f.link); err != nil {
				return "", err
			}
		}
	}
	if w.plan.ManifestPath == "" || w.opts.NoHash || f.unlisted {
		return "", nil
	}
	sum, _, err = fsx.SHA256(f.link)
	return sum, err
}

// copyFile copies content, permission bits and time of modification.
func copyFile(to, from string) error {
	src, info, err := InnerLinks.open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close(), os.Chtimes(to, info.ModTime(), info.ModTime()))
}
