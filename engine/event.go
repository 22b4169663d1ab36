package engine

import "time"

// EventKind is what an [Event] is about.
type EventKind string

// The kinds. A job has one submitted event; then either reused, or, for each attempt, started, its
// stages and progress, and retry if there is another; and at the end exactly one of finished,
// failed, skipped or canceled.
const (
	EventSubmitted EventKind = "submitted"
	EventStarted   EventKind = "started"
	EventStage     EventKind = "stage"      // Stage begins
	EventStageDone EventKind = "stage_done" // Stage ended, with Error if it failed, after Wall
	EventProgress  EventKind = "progress"   // Done of Total; Text is the unit
	EventWarning   EventKind = "warning"    // Text
	EventRetry     EventKind = "retry"      // the attempt failed with Cause and Error; the next begins after Delay
	EventFinished  EventKind = "finished"
	EventFailed    EventKind = "failed"
	EventSkipped   EventKind = "skipped"  // Text is the reason
	EventCanceled  EventKind = "canceled" // Text is the reason
	EventReused    EventKind = "reused"
)

// Event is one thing that happened to a job. It is a value and may be kept.
type Event struct {
	Time    time.Time `json:"time"`
	Job     string    `json:"job"`
	Attempt int       `json:"attempt,omitempty"` // zero when the event is not about an attempt
	Kind    EventKind `json:"kind"`
	Stage   string    `json:"stage,omitempty"`
	Text    string    `json:"text,omitempty"`
	Cause   Cause     `json:"cause,omitempty"`
	Error   string    `json:"error,omitempty"`
	// Err is the error whose text is Error, when it happened in this process.
	Err   error         `json:"-"`
	Done  int           `json:"done,omitempty"`
	Total int           `json:"total,omitempty"` // zero when not known
	Delay time.Duration `json:"delay,omitempty"`
	// Wall is the time of the stage or attempt that ended.
	Wall            time.Duration `json:"wall,omitempty"`
	PeakMemoryBytes int64         `json:"peak_memory_bytes,omitempty"`
	// Dir is the attempt's folder, in started and at the end.
	Dir string `json:"dir,omitempty"`
}
