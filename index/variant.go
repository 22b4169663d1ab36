package index

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// variantSchema is the draft that [Variant] follows.
const variantSchema = "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json"

// Variant is the content of the variant.json of a wheel (PEP 825, a draft): what the
// label at the end of its name stands for.
type Variant struct {
	// Label is the last part of the file name.
	Label string `json:"label"`
	// Namespaces are ordered by priority.
	Namespaces []string `json:"namespaces"`
	// Properties are namespace → feature → values.
	Properties map[string]map[string][]string `json:"properties"`
}

// variantDocument is the form of variant.json and of the file that an index lists.
type variantDocument struct {
	Schema     string `json:"$schema"`
	Priorities struct {
		Namespace []string `json:"namespace"`
	} `json:"default-priorities"`
	Variants map[string]map[string]map[string][]string `json:"variants"`
}

// ParseVariant reads the variant.json of a wheel with the given label.
func ParseVariant(data []byte, label string) (*Variant, error) {
	var doc variantDocument
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("variant.json: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("variant.json: more after the object")
	}
	properties, ok := doc.Variants[label]
	switch {
	case len(doc.Variants) != 1 || !ok:
		return nil, fmt.Errorf("variant.json: describes other variants than %q, that of the file name", label)
	case len(doc.Priorities.Namespace) == 0 && len(properties) > 0:
		return nil, errors.New("variant.json: no default-priorities.namespace")
	case label == "null" && len(properties) > 0:
		return nil, errors.New(`variant.json: the variant "null" has properties`)
	}
	for i, namespace := range doc.Priorities.Namespace {
		if !variantWord(namespace, "_") || slices.Contains(doc.Priorities.Namespace[:i], namespace) {
			return nil, fmt.Errorf("variant.json: namespace %q is not valid, or is there twice", namespace)
		}
	}
	for namespace, features := range properties {
		if !slices.Contains(doc.Priorities.Namespace, namespace) {
			return nil, fmt.Errorf("variant.json: namespace %q has no priority", namespace)
		}
		for feature, values := range features {
			if !variantWord(feature, "_") || len(values) == 0 {
				return nil, fmt.Errorf("variant.json: feature %q is not valid, or has no values", feature)
			}
			for i, value := range values {
				if !variantWord(value, "_.") || i > 0 && values[i-1] >= value {
					return nil, fmt.Errorf("variant.json: values of %q are not valid, sorted and different", feature)
				}
			}
		}
	}
	return &Variant{Label: label, Namespaces: doc.Priorities.Namespace, Properties: properties}, nil
}

func variantWord(s, more string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune(more, r)
	})
}

// mergeVariants makes the document of all variants of one version. It is an error if a label
// has two meanings, or if the orders of namespaces contradict each other.
func mergeVariants(variants []*Variant) ([]byte, error) {
	doc := variantDocument{Schema: variantSchema, Variants: map[string]map[string]map[string][]string{}}
	for _, v := range variants {
		if have, ok := doc.Variants[v.Label]; ok {
			if !equalProperties(have, v.Properties) {
				return nil, fmt.Errorf("variant %q has two meanings", v.Label)
			}
		}
		properties := v.Properties
		if properties == nil {
			properties = map[string]map[string][]string{}
		}
		doc.Variants[v.Label] = properties
		longer, shorter := doc.Priorities.Namespace, v.Namespaces
		if len(longer) < len(shorter) {
			longer, shorter = shorter, longer
		}
		if !slices.Equal(longer[:len(shorter)], shorter) {
			return nil, fmt.Errorf("variant %q orders the namespaces %v, another one %v", v.Label, v.Namespaces, doc.Priorities.Namespace)
		}
		doc.Priorities.Namespace = longer
	}
	if doc.Priorities.Namespace == nil {
		doc.Priorities.Namespace = []string{}
	}
	return json.Marshal(doc) // maps are written sorted
}

func equalProperties(a, b map[string]map[string][]string) bool {
	return maps.EqualFunc(a, b, func(a, b map[string][]string) bool {
		return maps.EqualFunc(a, b, slices.Equal[[]string])
	})
}
