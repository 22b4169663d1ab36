package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// jsonValue reads a YAML document as the JSON value that an editor checks against
// the schema. Tags are resolved as kiln resolves them: what is not text to kiln is
// not a string here. What has no JSON value, such as a repeated key, is an error.
func jsonValue(text []byte) (any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not UTF-8")
	}
	loader := yaml.NewDecoder(bytes.NewReader(text))
	var root, next yaml.Node
	if err := loader.Decode(&root); err != nil {
		return nil, err
	}
	if err := loader.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more than one document: %w", err)
	}
	if len(root.Content) == 0 {
		return nil, errors.New("no content")
	}
	c := &converter{}
	top := resolve(root.Content[0])
	if top.Kind != yaml.MappingNode {
		return c.value(top)
	}
	return c.mapping(top, func(key string) bool { return strings.HasPrefix(key, "x-") })
}

// errTooLarge says that aliases make a document too large to be expanded.
var errTooLarge = errors.New("too many nested or repeated values")

type converter struct{ values, depth int }

func (c *converter) value(n *yaml.Node) (any, error) {
	c.depth++
	defer func() { c.depth-- }()
	if c.values++; c.values > 1<<20 || c.depth > 100 {
		return nil, errTooLarge
	}
	n = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		return c.mapping(n, func(string) bool { return false })
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			v, err := c.value(item)
			if err != nil {
				return nil, err
			}
			list[i] = v
		}
		return list, nil
	case yaml.ScalarNode:
		return scalar(n), nil
	}
	return nil, fmt.Errorf("line %d: no JSON value", n.Line)
}

// mapping converts a mapping with its merge keys. Values of ignored keys are true.
func (c *converter) mapping(n *yaml.Node, ignored func(string) bool) (map[string]any, error) {
	out := map[string]any{}
	var merged []*yaml.Node
	add := func(key, value *yaml.Node) (err error) {
		if out[key.Value] = any(true); !ignored(key.Value) {
			out[key.Value], err = c.value(value)
		}
		return err
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		if key.Tag == "!!merge" {
			merged = append(merged, resolve(value))
			continue
		}
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			return nil, fmt.Errorf("line %d: a key is not text", key.Line)
		}
		if _, repeated := out[key.Value]; repeated {
			return nil, fmt.Errorf("line %d: the key %q is repeated", key.Line, key.Value)
		}
		if err := add(key, value); err != nil {
			return nil, err
		}
	}
	for len(merged) > 0 {
		from := resolve(merged[0])
		merged = merged[1:]
		if from.Kind == yaml.SequenceNode {
			merged = append(append([]*yaml.Node{}, from.Content...), merged...)
			continue
		}
		if from.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d: not a map to merge", from.Line)
		}
		for i := 0; i+1 < len(from.Content); i += 2 {
			key := resolve(from.Content[i])
			if _, given := out[key.Value]; given {
				continue
			}
			if err := add(key, from.Content[i+1]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil && i < 100; i++ {
		n = n.Alias
	}
	return n
}

func scalar(n *yaml.Node) any {
	switch n.Tag {
	case "!!str":
		return n.Value
	case "!!null":
		return nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true")
	case "!!int":
		if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
			return v
		}
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		// Not text, and no number that JSON has: a date, .inf, a tag of its own.
		// Any fraction stands for it, because kiln takes it where it takes numbers.
		return 0.5
	}
	return v
}
