package exl2

import (
	"fmt"
	"slices"
	"strings"
)

// Kind classifies a Problem, for callers that branch or group.
type Kind string

// The kinds of problem that ReadInventory, Plan and Verify report.
const (
	BadJob        Kind = "bad-job"        // job_new.json unreadable, incomplete or not at the compile step
	BadConfig     Kind = "bad-config"     // config.json unreadable, or a field missing or of the wrong type
	MissingFile   Kind = "missing-file"   // a file that must exist does not
	BadFile       Kind = "bad-file"       // truncated or not safetensors
	MissingTensor Kind = "missing-tensor" // a tensor that must exist does not
	ForeignTensor Kind = "foreign-tensor" // a tensor that must not exist does
	BadShape      Kind = "bad-shape"      // shape against the architecture or against the other tensors
	BadDType      Kind = "bad-dtype"      // dtype that cannot be read or does not belong there
	BadMatrix     Kind = "bad-matrix"     // an EXL2 invariant of groups, permutation or scales is broken
	BadOutput     Kind = "bad-output"     // the target cannot be used
	BadPacking    Kind = "bad-packing"    // the shard limit cannot be met the way the mode demands
	BadValue      Kind = "bad-value"      // infinity or NaN where the caller wants none
	Mismatch      Kind = "mismatch"       // verification: content is not what was recorded
	ForeignFile   Kind = "foreign-file"   // verification: a file that was not recorded
	BadSignature  Kind = "bad-signature"  // verification: the manifest is not signed by a trusted key
	NotVerifiable Kind = "not-verifiable" // verification: there is nothing recorded to compare with
)

// Problem is one thing that stops a compile or fails a verification.
type Problem struct {
	Kind    Kind   `json:"kind"`
	File    string `json:"file,omitempty"`   // path, or name inside the model folder
	Tensor  string `json:"tensor,omitempty"` // tensor or key the problem is about
	Message string `json:"message"`
	// Alternatives are the names of which any one would have solved a MissingTensor.
	Alternatives []string `json:"alternatives,omitempty"`
}

// String returns the problem as one line: where, what, and what would do instead.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ": ")
	}
	if p.Tensor != "" {
		b.WriteString(p.Tensor + ": ")
	}
	b.WriteString(p.Message)
	if len(p.Alternatives) > 0 {
		b.WriteString(" (any of: " + strings.Join(p.Alternatives, ", ") + ")")
	}
	return b.String()
}

// Problems is everything that was found wrong, in the order of the model.
// As an error it shows the first few and counts the rest.
type Problems []Problem

// Err returns ps as an error, or nil when there are none.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// Error implements error.
func (ps Problems) Error() string {
	const show = 10
	if len(ps) == 0 {
		return "no problems"
	}
	var b strings.Builder
	if len(ps) != 1 {
		fmt.Fprintf(&b, "%d problems:", len(ps))
	}
	for i, p := range ps {
		if i == show {
			fmt.Fprintf(&b, "\n  and %d more", len(ps)-show)
			break
		}
		if len(ps) == 1 {
			return p.String()
		}
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Has reports whether a problem of the kind is among them.
func (ps Problems) Has(k Kind) bool {
	return slices.ContainsFunc(ps, func(p Problem) bool { return p.Kind == k })
}

func (ps *Problems) add(k Kind, file, tensor, format string, args ...any) {
	*ps = append(*ps, Problem{Kind: k, File: file, Tensor: tensor, Message: fmt.Sprintf(format, args...)})
}
