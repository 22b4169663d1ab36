package matrix

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/secret"
)

// Credentials returns the addresses of the file that came with credentials, which stand nowhere else
// in it: settings and plans have the addresses without.
func (f *File) Credentials() []secret.URL { return slices.Clone(f.credentials) }

// takeCredentials takes the credentials out of all addresses below a node, before anything else
// reads them. Where kiln does not connect to the address itself it could not give them back, and
// what it writes down would be wrong without: there they are mistakes.
func (d *decoder) takeCredentials(n *yaml.Node, path []string) {
	switch n.Kind {
	case yaml.DocumentNode, yaml.SequenceNode:
		for _, item := range n.Content {
			d.takeCredentials(item, path)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			d.takeCredentials(n.Content[i], nil)
			d.takeCredentials(n.Content[i+1], append(slices.Clip(path), n.Content[i].Value))
		}
	case yaml.ScalarNode:
		if slices.Equal(path, []string{"cache", "remote"}) {
			return // has its own rules, and they are stricter
		}
		clean, found := secret.Extract(n.Value)
		if len(found) == 0 {
			return
		}
		if !takesCredentials(path) {
			p := d.place(n)
			d.list.Add(diag.Diagnostic{
				Rule: "credentials", Pos: p.pos, Secret: true, Message: "the address holds credentials, and kiln would write them down",
				Hint: "leave them out; the addresses of source, torch_source, requirements and of a kiln server may have some",
			})
		}
		n.Value = clean
		d.credentials = append(d.credentials, found...)
	}
}

// takesCredentials reports whether kiln itself connects to the address at a path of keys.
func takesCredentials(path []string) bool {
	if len(path) > 0 && strings.HasPrefix(path[0], "x-") {
		return true // for anchors; what uses them is looked at by its own path
	}
	last, parent := "", ""
	if len(path) > 1 {
		last, parent = path[len(path)-1], path[len(path)-2]
	}
	switch last {
	case "git", "sdist":
		return parent == "source"
	case "index":
		return parent == "source" || parent == "torch_source"
	case "extra_deps":
		return true
	case "requires":
		return parent == "test"
	case "kiln":
		return len(path) == 4 && path[0] == "publish" && path[1] == "targets"
	case "remote":
		return len(path) == 3 && path[0] == "publish" && path[1] == "index"
	}
	return false
}
