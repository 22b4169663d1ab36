package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
)

// Read makes the report of the last or current build of a state folder, and returns the state that
// it was made from. A folder in which nothing was built has an empty report.
func Read(stateDir string) (*Report, *engine.State, error) {
	state, err := engine.ReadState(stateDir)
	if err != nil {
		return nil, nil, err
	}
	plan, err := record.ReadPlan(stateDir)
	if err != nil {
		return nil, nil, err
	}
	_, active := engine.Active(stateDir)
	return New(Input{Plan: *plan, State: state, Active: active}), state, nil
}

// freshFor is how long an answer is given again before the journal is read again.
const freshFor = time.Second

// Handler serves the page of the builds of a state folder at /builds/, and the same for scripts at
// /builds/state.json. Errors of reading go to log; nil discards them.
func Handler(stateDir string, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &handler{dir: stateDir, log: log}
}

type handler struct {
	dir string
	log *slog.Logger

	mu     sync.Mutex // one reads, the others wait for it
	made   time.Time
	answer answer
	err    error
}

// answer is what clients get for a second.
type answer struct {
	revision   string
	page, json []byte
}

func (h *handler) current() (answer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.made) >= freshFor {
		h.answer, h.err = h.read()
		h.made = time.Now()
	}
	return h.answer, h.err
}

func (h *handler) read() (a answer, err error) {
	r, _, err := Read(h.dir)
	if err != nil {
		return a, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	sum := sha256.Sum256(text)
	a.revision = hex.EncodeToString(sum[:8])
	if a.json, err = json.Marshal(map[string]any{"revision": a.revision, "summary": r.Summary(), "report": json.RawMessage(text)}); err != nil {
		return a, err
	}
	var page bytes.Buffer
	if err := r.write(&page, time.Now(), true, a.revision); err != nil {
		return a, err
	}
	a.page = page.Bytes()
	return a, nil
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	// What a build says is for the people who may open the page, not for other sites in their
	// browsers.
	header.Del("Access-Control-Allow-Origin")
	header.Del("Access-Control-Expose-Headers")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	path := strings.TrimPrefix(r.URL.Path, "/builds")
	switch path {
	case "":
		header.Set("Location", "builds/")
		w.WriteHeader(http.StatusFound)
		return
	case "/", "/state.json":
	default:
		http.Error(w, "no such page", http.StatusNotFound)
		return
	}
	a, err := h.current()
	if err != nil {
		h.log.Error("state of the build is not readable", "folder", h.dir, "error", err)
		http.Error(w, "the state of the build is not readable; the log of the server says why", http.StatusInternalServerError)
		return
	}
	body := a.page
	if path == "/" {
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy(true))
	} else {
		header.Set("Content-Type", "application/json")
		header.Set("ETag", `"`+a.revision+`"`)
		body = a.json
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
