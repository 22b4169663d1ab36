package exl2

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// The tests in this file compare with the reference implementation in internal/reference. They run
// when KILN_E2E names "model", with the Python of KILN_PYTHON (default python3), which must have
// numpy and safetensors.

var (
	e2eCases = flag.Int("exl2.cases", 1000, "random models that are compared with the reference")
	e2eSeed  = flag.Uint64("exl2.seed", 1_000_000, "seed of the first of them")
)

func needE2E(t *testing.T) {
	t.Helper()
	kilntest.NeedE2E(t, "model")
}

// reference is the Python program, answering one request after the other.
type reference struct{ *kilntest.Peer }

type refAnswer struct {
	Status  string    `json:"status"` // ok, fatal, error
	Message string    `json:"message"`
	Texts   []*string `json:"texts"`
}

func startReference(t *testing.T) reference {
	t.Helper()
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		python = "python3"
	}
	return reference{kilntest.StartPeer(t, python, filepath.Join("internal", "reference", "reference.py"), "serve")}
}

func (r reference) ask(t *testing.T, request map[string]any) (a refAnswer) {
	t.Helper()
	r.Ask(t, request, &a)
	return a
}

// TestE2EReference compiles random models in both modes and compares: the compatible mode byte for
// byte and file for file with the reference, the default mode tensor for tensor as the safetensors
// library reads it.
func TestE2EReference(t *testing.T) {
	needE2E(t)
	ref := startReference(t)
	byArch, fatal := map[string]int{}, 0
	for i := range *e2eCases {
		seed := *e2eSeed + uint64(i)
		fx := &fixture{Seed: seed}
		dir := filepath.Join(t.TempDir(), fmt.Sprint(seed))
		fx.make(t, dir)
		a := ref.ask(t, map[string]any{"op": "compile", "work": fx.work})
		if a.Status == "error" {
			t.Fatalf("seed %d %s: reference: %s", seed, fx.Arch, a.Message)
		}
		byArch[fx.Arch]++
		mine, other := filepath.Join(dir, "mine"), filepath.Join(dir, "default")
		err := compileFixture(t, fx, PlanOptions{Mode: Compat, Out: mine}, WriteOptions{NoHash: i%3 == 0})
		if a.Status == "fatal" {
			fatal++
			if ps, ok := asProblems(err); !ok || !ps.Has(BadPacking) {
				t.Errorf("seed %d %s: the reference finds no packing, we say %v", seed, fx.Arch, err)
			}
			if _, err := os.Lstat(mine); err == nil {
				t.Errorf("seed %d: output exists after an error", seed)
			}
		} else if err != nil {
			t.Errorf("seed %d %s: %v", seed, fx.Arch, err)
		} else if diff := diffDirs(t, fx.out, mine); diff != "" {
			t.Errorf("seed %d %s limit %v: %s", seed, fx.Arch, fx.Limit, diff)
		}

		if err := compileFixture(t, fx, PlanOptions{Out: other}, WriteOptions{NoHash: i%3 == 1}); err != nil {
			t.Errorf("seed %d %s default mode: %v", seed, fx.Arch, err)
		} else if a.Status == "ok" {
			req := map[string]any{"op": "same", "compat": fx.out, "default": other, "limit": int64(fx.Limit * (1 << 20))}
			if s := ref.ask(t, req); s.Status != "ok" {
				t.Errorf("seed %d %s default mode: %s", seed, fx.Arch, s.Message)
			}
			rep, err := Verify(t.Context(), other, VerifyOptions{ModelDir: fx.model, Structure: i%3 == 1})
			if err != nil || len(rep.Problems) > 0 {
				t.Errorf("seed %d %s: verify: %v %v", seed, fx.Arch, err, rep)
			}
		}
		if t.Failed() {
			t.Logf("kept out of %d cases at %s", i+1, dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d models of %d architectures, %d of them without a packing", *e2eCases, len(byArch), fatal)
	if *e2eCases >= 1000 && len(byArch) < 29 {
		t.Errorf("only %d architectures came up", len(byArch))
	}
}

// TestE2EJSON compares the rewriting of config.json with Python's on random documents and on
// damaged ones.
func TestE2EJSON(t *testing.T) {
	needE2E(t)
	ref := startReference(t)
	r := rand.New(rand.NewPCG(*e2eSeed, 3))
	compared, refused := 0, 0
	for range 50 {
		texts := make([]string, 200)
		for i := range texts {
			texts[i] = randomJSON(r, 0)
			if r.IntN(10) == 0 && len(texts[i]) > 1 { // cut off, or with a letter too much
				at := r.IntN(len(texts[i]))
				texts[i] = strings.ToValidUTF8(texts[i][:at]+[]string{"", "e", "0", ",", `"`}[r.IntN(5)]+texts[i][at:][r.IntN(2):], "?")
			}
		}
		a := ref.ask(t, map[string]any{"op": "json", "texts": texts})
		for i, text := range texts {
			v, err := parseJSON([]byte(text))
			switch want := a.Texts[i]; {
			case want == nil:
				refused++
				if err == nil {
					t.Errorf("%q: Python refuses, we do not", text)
				}
			case err != nil:
				if !strings.Contains(err.Error(), "out of range") && !strings.Contains(*want, "NaN") {
					t.Errorf("%q: %v; Python gives %s", text, err, *want)
				}
			default:
				compared++
				if got := string(appendPython(nil, v, 0)); got != *want {
					t.Errorf("%q\n got %s\nwant %s", text, got, *want)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d documents the same, %d refused by both", compared, refused)
}

// randomJSON makes a document of the kinds of values that are written differently by different
// programs.
func randomJSON(r *rand.Rand, depth int) string {
	space := []string{"", " ", "\n\t"}[r.IntN(3)]
	kind := r.IntN(8)
	if depth > 3 {
		kind = r.IntN(6)
	}
	switch kind {
	case 0:
		return []string{"null", "true", "false", "-0", "0", "-0.0", "0.0", "1E6", "1e400", "-1e-400", "5e-324"}[r.IntN(11)]
	case 1:
		return strconv.FormatInt(int64(r.Uint64()), 10) + []string{"", "0123456789012345678"}[r.IntN(2)]
	case 2:
		return strconv.FormatFloat(math.Float64frombits(r.Uint64()&^(1<<62)), 'g', -1, 64)
	case 3:
		return strconv.FormatFloat(r.NormFloat64()*math.Pow(10, float64(r.IntN(40)-20)), "efg"[r.IntN(3)], r.IntN(18), 64)
	case 4, 5:
		var b strings.Builder
		for range r.IntN(8) {
			switch r.IntN(4) {
			case 0:
				fmt.Fprintf(&b, "\\u%04x", r.IntN(1<<16))
			case 1:
				fmt.Fprintf(&b, "\\u%04X", 0xD800+r.IntN(0x800))
			case 2:
				b.WriteString([]string{`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`, "/", "<", "\x7f", "é", "\u2028", "😀"}[r.IntN(14)])
			default:
				b.WriteByte(byte('a' + r.IntN(26)))
			}
		}
		return `"` + b.String() + `"`
	case 6:
		var items []string
		for range r.IntN(4) {
			items = append(items, space+randomJSON(r, depth+1))
		}
		return "[" + strings.Join(items, ",") + space + "]"
	}
	var items []string
	for range r.IntN(5) {
		items = append(items, space+`"`+string(rune('a'+r.IntN(4)))+`"`+space+":"+randomJSON(r, depth+1))
	}
	return "{" + space + strings.Join(items, ",") + "}"
}
