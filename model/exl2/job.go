package exl2

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// JobFile is the name of the converter's job file in its working directory.
const JobFile = "job_new.json"

// defaultShardMiB is the shard limit of a job without one, which is also the converter's default.
const defaultShardMiB = 8192

// versionKeys are the names under which a job, or the metadata of a quantized layer, says which
// release of exllamav2 made it. The converter writes neither; programs around it do.
var versionKeys = []string{"exllamav2_version", "version"}

// Job is what a compile needs to know of a converter's job.
type Job struct {
	Dir      string `json:"dir"`       // working directory it was read from
	ModelDir string `json:"model_dir"` // in_dir
	OutDir   string `json:"out_dir"`   // compile_full; empty if the job has none
	// ShardBytes is the shard limit. A fractional limit is rounded down, which selects the same
	// shards.
	ShardBytes int64  `json:"shard_bytes"`
	Progress   string `json:"progress"`
	// Version is the release of exllamav2 that quantized, if the job says; see [Inventory.Plan].
	Version string `json:"version,omitempty"`

	// Values that go into quantization_config exactly as the job has them.
	bits, headBits, rows, length, dataset value

	lastQuantized int64 // q_last_module_idx, −1 if absent
}

// progressBefore are the states of the converter in which there is nothing to compile yet.
var progressBefore = map[string]bool{
	"begin": true, "initial_embeddings": true, "measure_quant": true, "optimize": true,
	"tokens_cal": true, "embeddings": true, "quant": true,
}

// readJob reads the job of a working directory from a file that need not be in it.
func readJob(path, workDir string, links Links) (*Job, Problems) {
	data, err := links.readSmall(path, maxJobBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Problems{{Kind: MissingFile, File: path, Message: "no job here; this is the working directory (-o) of the converter"}}
	}
	if err != nil {
		return nil, Problems{{Kind: BadJob, File: path, Message: err.Error()}}
	}
	job, ps := parseJob(data, path)
	if job != nil {
		job.Dir = workDir
	}
	return job, ps
}

func parseJob(data []byte, path string) (*Job, Problems) {
	var ps Problems
	bad := func(format string, args ...any) { ps.add(BadJob, path, "", format, args...) }

	used := map[string]bool{
		"in_dir": true, "compile_full": true, "shard_size": true, "progress": true, "bits": true, "head_bits": true,
		"dataset_rows": true, "length": true, "cal_dataset": true, "invalid": true, "q_last_module_idx": true,
	}
	for _, key := range versionKeys {
		used[key] = true
	}
	// The measurement of a large model is tens of megabytes; it is checked, not kept.
	root, err := parseJSONMembers(data, func(key string) bool { return used[key] })
	if err == nil && root.kind != kObject {
		err = errors.New("want an object")
	}
	if err != nil {
		bad("not a complete job: %v", err)
		return nil, ps
	}
	job := &Job{lastQuantized: -1}
	text := func(key string) string {
		v := root.get(key)
		if v == nil || v.kind == kNull {
			return ""
		}
		if v.kind != kString {
			bad("%s is not a string", key)
			return ""
		}
		return v.text
	}
	number := func(key string) value {
		v := root.get(key)
		if v == nil {
			bad("%s is missing", key)
			return value{}
		}
		if v.kind != kInt && v.kind != kFloat {
			bad("%s is not a number", key)
		}
		return *v
	}

	if root.get("invalid") != nil {
		bad("the job is marked invalid: the converter was stopped while it wrote a checkpoint")
	}
	job.Progress = text("progress")
	switch {
	case progressBefore[job.Progress]:
		bad("the quantization is not finished (progress is %q)", job.Progress)
	case job.Progress != "compile" && job.Progress != "finished":
		bad("unknown progress %q", job.Progress)
	}
	job.ModelDir = text("in_dir")
	job.OutDir = text("compile_full")
	for _, key := range versionKeys {
		if job.Version == "" {
			job.Version = text(key)
		}
	}
	job.bits, job.headBits = number("bits"), number("head_bits")
	job.rows, job.length = number("dataset_rows"), number("length")

	mib := float64(defaultShardMiB)
	if root.get("shard_size") != nil {
		mib = number("shard_size").float()
	}
	switch limit := mib * (1 << 20); {
	case math.IsNaN(mib): // reported by number
	case limit < 1:
		bad("shard_size is %v, want a positive number of MiB", mib)
	case limit >= math.MaxInt64:
		job.ShardBytes = math.MaxInt64
	default:
		job.ShardBytes = int64(limit)
	}

	job.dataset = str("(default)")
	if v := root.get("cal_dataset"); v != nil && v.kind != kNull {
		if v.kind != kString {
			bad("cal_dataset is not a string")
		} else { // cut from the literal, which keeps what is not UTF-8 in a file name
			job.dataset = value{kind: kString, literal: `"` + v.literal[max(strings.LastIndexByte(v.literal, '/'), 0)+1:]}
		}
	}
	if v := root.get("q_last_module_idx"); v != nil && v.kind == kInt {
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
			job.lastQuantized = n
		}
	}
	return job, ps
}

// float returns a number, or NaN if v is none.
func (v value) float() float64 {
	switch v.kind {
	case kInt:
		f, err := strconv.ParseFloat(v.text, 64)
		if err != nil && !math.IsInf(f, 0) {
			return math.NaN()
		}
		return f
	case kFloat:
		return v.num
	}
	return math.NaN()
}

// quantizationConfig is the object that marks a model as EXL2.
func (j *Job) quantizationConfig(version string) value {
	return value{kind: kObject, members: []member{
		{"quant_method", str("exl2")},
		{"version", str(version)},
		{"bits", j.bits},
		{"head_bits", j.headBits},
		{"calibration", value{kind: kObject, members: []member{
			{"rows", j.rows},
			{"length", j.length},
			{"dataset", j.dataset},
		}}},
	}}
}

// compiledConfig returns the text of the output's config.json.
func compiledConfig(source []byte, job *Job, version string) ([]byte, error) {
	root, err := parseJSON(source)
	if err != nil {
		return nil, err
	}
	if root.kind != kObject {
		return nil, fmt.Errorf("want an object")
	}
	root.set("quantization_config", job.quantizationConfig(version))
	return appendPython(nil, root, 0), nil
}
