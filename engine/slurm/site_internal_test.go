package slurm

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What scontrol of Slurm 22.05.8 printed, shortened.
const (
	recordedPartitions = `PartitionName=main AllowGroups=ALL Default=YES QoS=N/A DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0 Nodes=n[1-3] TotalCPUs=6 TotalNodes=3 DefMemPerNode=UNLIMITED
PartitionName=short AllowGroups=ALL Default=NO MaxTime=00:02:00 Nodes=n[1-3] TotalCPUs=6 TotalNodes=3
`
	recordedNodes = `NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=16.37 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=3000 AllocMem=0 State=IDLE Partitions=main,short  BootTime=2026-11-15T03:01:08
NodeName=n2 Arch=x86_64 CPUTot=4 RealMemory=2000 State=IDLE Partitions=main
`
	recordedConfig = `Configuration data as of 2026-11-15T12:08:56
KillWait                = 5 sec
MaxArraySize            = 1001
MinJobAge               = 60 sec
`
)

func TestReadSite(t *testing.T) {
	command := func(_ context.Context, stdout io.Writer, argv ...string) error {
		text := map[string]string{"partition": recordedPartitions, "node": recordedNodes, "config": recordedConfig}[argv[len(argv)-1]]
		_, err := io.WriteString(stdout, text)
		return err
	}
	tests := []struct {
		partition string
		want      *Site
		err       string
	}{
		{"", &Site{Partition: "main", TimeLimit: time.Hour, CPUs: 4, MemoryBytes: 3000 << 20, Nodes: 2, MaxArray: 1001, KillWait: 5 * time.Second}, ""},
		{"short", &Site{Partition: "short", TimeLimit: 2 * time.Minute, CPUs: 2, MemoryBytes: 3000 << 20, Nodes: 1, MaxArray: 1001, KillWait: 5 * time.Second}, ""},
		{"gpu", nil, "there is no partition gpu; there is main, short"},
	}
	for _, tt := range tests {
		got, err := readSite(t.Context(), tt.partition, command)
		if diff := cmp.Diff(tt.want, got); diff != "" || fmt.Sprint(err) != fmt.Sprint(orNil(tt.err)) {
			t.Errorf("%q: error %v (-want +got):\n%s", tt.partition, err, diff)
		}
	}
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func TestParseTime(t *testing.T) {
	tests := map[string]time.Duration{
		"UNLIMITED": 0, "30": 30 * time.Minute, "30:20": 30*time.Minute + 20*time.Second, "1:02:03": time.Hour + 2*time.Minute + 3*time.Second,
		"2-00:00:00": 48 * time.Hour, "1-12": 36 * time.Hour, "1-12:30": 36*time.Hour + 30*time.Minute,
	}
	for text, want := range tests {
		if got, err := parseTime(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "1:2:3:4", "-5", "1-", "::"} {
		if got, err := parseTime(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestCauseOf(t *testing.T) {
	tests := []struct {
		state string
		code  int
		want  string
	}{
		{"OUT_OF_MEMORY", 0, "memory"},
		{"TIMEOUT", 0, "paused"},
		{"PREEMPTED", 0, "paused"},
		{"DEADLINE", 0, "time"},
		{"CANCELLED", 0, "canceled"},
		{"NODE_FAIL", 0, "lost"},
		{"BOOT_FAIL", 0, "lost"},
		{"FAILED", 1, "lost"},
		{"FAILED", 127, "fault"},
		{"COMPLETED", 0, "lost"},
		{"", 0, "lost"},
	}
	for _, tt := range tests {
		if got := causeOf(tt.state, tt.code); string(got) != tt.want {
			t.Errorf("%s %d: %s, want %s", tt.state, tt.code, got, tt.want)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for n := int64(1); n < 5000; n++ {
		got := roundUp(n, 4)
		if got < n || got > n+n/4 || roundUp(got, 4) != got {
			t.Fatalf("%d became %d", n, got)
		}
	}
}

func TestTransient(t *testing.T) {
	for text, want := range map[string]bool{
		"slurm_load_jobs error: Unable to contact slurm controller (connect failure)":                                    true,
		"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation":                            true,
		"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size)": true,
		"sbatch: error: invalid partition specified: nope":                                                               false,
		"sbatch: error: Batch job submission failed: Requested node configuration is not available":                      false,
		"sbatch: error: Batch job submission failed: Invalid feature specification":                                      false,
	} {
		if got := transient(fmt.Errorf("sbatch: %s", text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if !strings.Contains(quote([]string{"a b", "it's"}), `'it'\''s'`) {
		t.Error(quote([]string{"a b", "it's"}))
	}
}
