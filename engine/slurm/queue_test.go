package slurm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func read(t *testing.T, text []byte, prefix string) []slurm.Entry {
	t.Helper()
	var got []slurm.Entry
	if err := slurm.ReadQueue(bytes.NewReader(text), prefix, func(e slurm.Entry) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestReadQueue reads what Slurm 22.05.8 printed on a cluster of three nodes.
func TestReadQueue(t *testing.T) {
	one := func(name, state, node string, task int) slurm.Entry {
		return slurm.Entry{Task: task, Name: name, State: state, Reason: "None", Nodes: node}
	}
	array := func(e slurm.Entry) slurm.Entry { e.Job = 1; return e }
	failed := array(one("kiln-abc-1", "FAILED", "n1", 1))
	failed.Reason, failed.Signal = "JobLaunchFailure", 10
	rest := array(one("kiln-abc-1", "PENDING", "", -1))
	rest.Tasks, rest.Reason = []int{5, 6, 7, 8, 9}, "JobArrayTaskLimit"
	again := func(e slurm.Entry, restarts int) slurm.Entry { e.Job, e.Restarts = 12, restarts; return e }
	tests := []struct {
		file string
		want []slurm.Entry
	}{
		{"squeue-22.05-array.json", []slurm.Entry{
			array(one("kiln-abc-1", "RUNNING", "n1", 0)), failed, array(one("kiln-abc-1", "RUNNING", "n2", 2)),
			array(one("kiln-abc-1", "SIGNALING", "n2", 3)), array(one("kiln-abc-1", "RUNNING", "n1", 4)), rest,
		}},
		// After the loss of n1 two tasks were started again.
		{"squeue-22.05-nodefail.json", []slurm.Entry{
			again(one("kiln-abc-2", "RUNNING", "n3", 3), 1), again(one("kiln-abc-2", "RUNNING", "n3", 4), 1),
			again(one("kiln-abc-2", "RUNNING", "n2", 5), 0), again(one("kiln-abc-2", "RUNNING", "n2", 6), 0),
		}},
	}
	for _, tt := range tests {
		text, err := os.ReadFile("testdata/" + tt.file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, read(t, text, "kiln-abc-")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.file, diff)
		}
		if got := read(t, text, "kiln-other-"); len(got) > 0 {
			t.Errorf("%s: jobs of others: %+v", tt.file, got)
		}
		// A list that is cut short anywhere must not look like a queue with fewer jobs.
		for i := 0; i < len(bytes.TrimSpace(text)); i += 97 {
			if err := slurm.ReadQueue(bytes.NewReader(text[:i]), "kiln-", func(slurm.Entry) {}); err == nil {
				t.Errorf("%s: the first %d bytes were taken for the whole", tt.file, i)
			}
		}
	}
}

// TestReadQueueDown: squeue of Slurm 22.05.8 ended with status 0 and printed this while there was
// no controller.
func TestReadQueueDown(t *testing.T) {
	text, err := os.ReadFile("testdata/squeue-22.05-down.json")
	if err != nil {
		t.Fatal(err)
	}
	err = slurm.ReadQueue(bytes.NewReader(text), "", func(e slurm.Entry) { t.Errorf("%+v", e) })
	if !errors.Is(err, slurm.ErrNoQueue) || !strings.Contains(err.Error(), "Failed while looking for jobs") {
		t.Error(err)
	}
}

// TestReadQueueForms reads other forms of the same fields. They follow the documentation of later
// versions; no such Slurm was asked.
func TestReadQueueForms(t *testing.T) {
	tests := []struct {
		name, job string
		want      slurm.Entry
	}{
		{
			"objects", `{"job_id": 7, "array_job_id": {"set": true, "infinite": false, "number": 5}, "array_task_id": {"set": true, "number": 2}, "array_task_string": "",
				"name": "k", "job_state": ["OUT_OF_MEMORY", "COMPLETING"], "state_reason": "OutOfMemory", "restart_cnt": 1, "nodes": "n1",
				"exit_code": {"status": ["SIGNALED"], "return_code": {"set": false, "number": 0}, "signal": {"id": {"set": true, "number": 9}, "name": "KILL"}}}`,
			slurm.Entry{Job: 5, Task: 2, Name: "k", State: "OUT_OF_MEMORY", Completing: true, Reason: "OutOfMemory", Restarts: 1, Signal: 9, Nodes: "n1"},
		},
		{
			"put back", `{"job_id": 5, "array_job_id": {"set": true, "number": 5}, "array_task_id": {"set": false, "number": 0}, "array_task_string": "1,4-5", "name": "k",
				"job_state": ["NODE_FAIL", "PENDING"], "exit_code": {"return_code": {"set": true, "number": 3}}}`,
			slurm.Entry{Job: 5, Task: -1, Tasks: []int{1, 4, 5}, Name: "k", State: "PENDING", ExitCode: 3},
		},
		{
			"cut short", `{"job_id": 5, "array_job_id": 5, "array_task_string": "1,3,...", "name": "k", "job_state": "PENDING"}`,
			slurm.Entry{Job: 5, Task: -1, Tasks: []int{1, 3}, All: true, Name: "k", State: "PENDING"},
		},
		{
			"steps", `{"job_id": 5, "array_job_id": 5, "array_task_string": "[0-8:4%2]", "name": "k", "job_state": "PENDING"}`,
			slurm.Entry{Job: 5, Task: -1, Tasks: []int{0, 4, 8}, Name: "k", State: "PENDING"},
		},
		{
			"no array", `{"job_id": 5, "array_job_id": 0, "array_task_id": null, "array_task_string": "", "name": "k", "job_state": "COMPLETED", "exit_code": 256}`,
			slurm.Entry{Job: 5, Name: "k", State: "COMPLETED", ExitCode: 1},
		},
	}
	for _, tt := range tests {
		got := read(t, fmt.Appendf(nil, `{"errors": [], "jobs": [%s]}`, tt.job), "")
		if diff := cmp.Diff([]slurm.Entry{tt.want}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for _, bad := range []string{"", "[]", "{}", `{"errors": []}`, `{"jobs": 5}`, `{"jobs": [}`, `{"jobs": []`, "slurm_load_jobs error: Unable to contact slurm controller"} {
		if err := slurm.ReadQueue(strings.NewReader(bad), "", func(slurm.Entry) {}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func FuzzReadQueue(f *testing.F) {
	for _, name := range []string{"squeue-22.05-array.json", "squeue-22.05-nodefail.json", "squeue-22.05-down.json"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"jobs": [{"job_state": ["PENDING"], "array_task_string": "0-4000000", "array_job_id": {"set": true, "number": 1}}]}`))
	f.Add([]byte(`{"jobs": [{"array_task_string": "9-1:0,,%", "exit_code": {}, "array_task_id": "x"}]}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		err := slurm.ReadQueue(bytes.NewReader(text), "", func(e slurm.Entry) {
			if e.Task >= 0 && len(e.Tasks) > 0 {
				t.Errorf("%+v", e)
			}
		})
		_ = err
	})
}
