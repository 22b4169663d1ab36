package slurm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Entry is one job of the queue, as `squeue --json` tells it. Tasks of an array that have not
// started share one.
type Entry struct {
	// Job is the number of the array, or of the job if it is none. Task is the task of this entry;
	// -1 if Tasks has several.
	Job  int
	Task int
	// Tasks lists the tasks that share the entry. All says that the list was cut short: every task
	// without an entry of its own belongs to it.
	Tasks []int
	All   bool

	Name string
	// State is Slurm's own word, such as PENDING; Completing that processes may still be there.
	State      string
	Completing bool
	Reason     string
	Restarts   int
	// ExitCode and Signal are how the script ended.
	ExitCode, Signal int
	Nodes            string
}

// number takes the forms that versions of Slurm give to a number: 5, null, "5", and {"set": true,
// "number": 5}.
type number struct {
	value int
	set   bool
}

func (n *number) UnmarshalJSON(text []byte) error {
	switch text[0] {
	case '{':
		var o struct {
			Set      bool `json:"set"`
			Infinite bool `json:"infinite"`
			Number   int  `json:"number"`
		}
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		n.value, n.set = o.Number, o.Set && !o.Infinite
	case '"':
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		v, err := strconv.Atoi(s)
		n.value, n.set = v, err == nil
	case 'n':
	default:
		var f float64
		if err := json.Unmarshal(text, &f); err != nil {
			return err
		}
		n.value, n.set = int(f), true
	}
	return nil
}

// words takes a word or a list of them.
type words []string

func (w *words) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, (*[]string)(w))
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	*w = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == '|' || r == ' ' })
	return nil
}

// exitCode takes a wait status, or the object that later versions make of it.
type exitCode struct{ code, signal int }

func (e *exitCode) UnmarshalJSON(text []byte) error {
	if text[0] == '{' {
		var o struct {
			ReturnCode number `json:"return_code"`
			Signal     struct {
				ID       number `json:"id"`
				SignalID number `json:"signal_id"`
			} `json:"signal"`
		}
		if err := json.Unmarshal(text, &o); err != nil {
			return err
		}
		e.code, e.signal = o.ReturnCode.value, max(o.Signal.ID.value, o.Signal.SignalID.value)
		return nil
	}
	var n number
	if err := n.UnmarshalJSON(text); err != nil {
		return err
	}
	e.code, e.signal = n.value>>8&0xff, n.value&0x7f
	return nil
}

// job is what is read of an element of "jobs".
type job struct {
	JobID       number   `json:"job_id"`
	ArrayJobID  number   `json:"array_job_id"`
	ArrayTaskID number   `json:"array_task_id"`
	ArrayTasks  string   `json:"array_task_string"`
	Name        string   `json:"name"`
	State       words    `json:"job_state"`
	Reason      string   `json:"state_reason"`
	Restarts    number   `json:"restart_cnt"`
	ExitCode    exitCode `json:"exit_code"`
	Nodes       string   `json:"nodes"`
}

// ErrNoQueue means that squeue ran, and that its answer is not the queue.
var ErrNoQueue = errors.New("squeue could not list the jobs")

// ReadQueue reads what `squeue --json` printed, of Slurm 21.08 and later, and calls visit for the
// jobs whose name begins with a prefix. It keeps nothing: the list has every job of a cluster.
// After an error, what was visited is not the queue: without a controller squeue of Slurm 22.05
// ends well, and prints an empty list with an error beside it.
func ReadQueue(r io.Reader, prefix string, visit func(Entry)) error {
	dec := json.NewDecoder(r)
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("squeue: this is not a JSON object: %w", orEmpty(err))
	}
	var bad error
	found := false
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return fmt.Errorf("squeue: %w", err)
		}
		switch key {
		case "jobs":
			found = true
			if err := readJobs(dec, prefix, visit); err != nil {
				return fmt.Errorf("squeue: %w", err)
			}
		case "errors":
			var list []struct {
				Description string `json:"description"`
				Error       string `json:"error"`
			}
			if err := dec.Decode(&list); err != nil {
				return fmt.Errorf("squeue: %w", err)
			}
			for _, e := range list {
				bad = errors.Join(bad, fmt.Errorf("%w: %s: %s", ErrNoQueue, e.Description, e.Error))
			}
		default:
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return fmt.Errorf("squeue: %w", err)
			}
		}
	}
	// Without the end of the object the list may be cut, and jobs would seem to be gone.
	if t, err := dec.Token(); err != nil || t != json.Delim('}') {
		return fmt.Errorf("squeue: the list is cut short: %w", orEmpty(err))
	}
	if !found {
		bad = errors.Join(bad, errors.New("squeue: the answer has no list of jobs"))
	}
	return bad
}

func orEmpty(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readJobs(dec *json.Decoder, prefix string, visit func(Entry)) error {
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return fmt.Errorf("jobs is not a list: %w", orEmpty(err))
	}
	for dec.More() {
		var j job
		if err := dec.Decode(&j); err != nil {
			return err
		}
		if strings.HasPrefix(j.Name, prefix) {
			visit(j.entry())
		}
	}
	_, err := dec.Token()
	return err
}

func (j *job) entry() Entry {
	e := Entry{
		Job: j.JobID.value, Task: -1, Name: j.Name, Reason: j.Reason, Restarts: j.Restarts.value,
		ExitCode: j.ExitCode.code, Signal: j.ExitCode.signal, Nodes: j.Nodes,
	}
	if j.ArrayJobID.set && j.ArrayJobID.value > 0 {
		e.Job = j.ArrayJobID.value
	}
	for _, s := range j.State {
		switch s {
		case "COMPLETING":
			e.Completing = true
			if e.State == "" {
				e.State = s
			}
		default:
			// A requeued job has its old state and PENDING; flags such as SIGNALING stand behind
			// the state.
			if e.State == "" || e.State == "COMPLETING" || s == "PENDING" {
				e.State = s
			}
		}
	}
	switch {
	case j.ArrayTasks != "":
		e.Tasks, e.All = taskList(j.ArrayTasks)
	case j.ArrayTaskID.set:
		e.Task = j.ArrayTaskID.value
	default:
		e.Task = 0
	}
	return e
}

// maxTasks is more than any array has: MaxArraySize is at most four million.
const maxTasks = 1 << 22

// taskList reads a list such as "1,3,7-9%4" or "0-10:2". The second result says that it is not
// complete.
func taskList(s string) (tasks []int, cut bool) {
	s, _, _ = strings.Cut(strings.Trim(s, "[]"), "%")
	for part := range strings.SplitSeq(s, ",") {
		part, step, _ := strings.Cut(part, ":")
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b, every := a, 1
		if err == nil && isRange {
			b, err = strconv.Atoi(last)
		}
		if err == nil && step != "" {
			every, err = strconv.Atoi(step)
		}
		if err != nil || a < 0 || every < 1 || b >= maxTasks || len(tasks)+(b-a)/every >= maxTasks {
			return tasks, true
		}
		for i := a; i <= b; i += every {
			tasks = append(tasks, i)
		}
	}
	return tasks, false
}

// ended reports whether a state is one that a job does not leave.
func ended(state string) bool {
	switch state {
	case "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED":
		return true
	}
	return false
}

// waiting reports whether a job has not started.
func waiting(state string) bool {
	switch state {
	case "PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD":
		return true
	}
	return false
}
