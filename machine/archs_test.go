package machine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/machine"
)

func ccs(list ...string) []compat.CC {
	var out []compat.CC
	for _, s := range list {
		cc, err := compat.ParseCC(s)
		if err != nil {
			panic(err)
		}
		out = append(out, cc)
	}
	return out
}

func TestSelectArchs(t *testing.T) {
	tests := []struct {
		name     string
		req      machine.ArchRequest
		want     string
		source   string
		warnings []string // a part of each
		err      string
	}{
		{"numeric order", machine.ArchRequest{CUDA: "12.8", Devices: ccs("9.0", "12.0")}, "9.0 12.0+PTX", "devices", nil, ""},
		{"each device once", machine.ArchRequest{CUDA: "12.8", Devices: ccs("8.6", "8.6", "8.0")}, "8.0 8.6+PTX", "devices", nil, ""},
		{"clamped to SASS", machine.ArchRequest{CUDA: "12.8", Devices: ccs("12.1")}, "12.0+PTX", "devices", []string{"can't make code for 12.1; 12.0 is made instead"}, ""},
		{"clamped to PTX", machine.ArchRequest{CUDA: "12.4", Devices: ccs("12.0")}, "9.0-virtual", "devices", []string{"9.0-virtual is made instead", "will use PTX"}, ""},
		{"clamped beside the real one", machine.ArchRequest{CUDA: "12.4", Devices: ccs("9.0", "12.0")}, "9.0+PTX", "devices", []string{"is made instead", "will use PTX"}, ""},
		{"embedded parts are apart", machine.ArchRequest{NVCC: parse("8.0 8.6"), Devices: ccs("8.7")}, "8.6-virtual", "devices", []string{"is made instead", "will use PTX"}, ""},
		{"device too old", machine.ArchRequest{CUDA: "13.0", Devices: ccs("6.1")}, "", "devices", nil, "6.1: not supported by this nvcc: it makes 7.5 to 12.1"},
		{"nvcc before the table", machine.ArchRequest{CUDA: "12.8", NVCC: parse("8.0 9.0"), Devices: ccs("12.0")}, "9.0-virtual", "devices", []string{"is made instead", "will use PTX"}, ""},
		{"user's list", machine.ArchRequest{List: "9.0+PTX;8.6", CUDA: "12.8", Devices: ccs("9.0")}, "8.6 9.0+PTX", "user", nil, ""},
		{"blank list", machine.ArchRequest{List: " ; ", CUDA: "12.8", Devices: ccs("9.0")}, "9.0+PTX", "devices", nil, ""},
		{"family name", machine.ArchRequest{List: "Ampere", CUDA: "12.8"}, "8.0 8.6+PTX", "user", nil, ""},
		{"user's list does not cover the GPU", machine.ArchRequest{List: "8.0 9.0", CUDA: "12.8", Devices: ccs("12.0")}, "", "user", nil, "can't use anything in the list 8.0 9.0"},
		{"user's list covers by PTX", machine.ArchRequest{List: "9.0+PTX", CUDA: "12.8", Devices: ccs("12.0")}, "9.0+PTX", "user", []string{"will use PTX"}, ""},
		{"unknown to nvcc", machine.ArchRequest{List: "8.0 12.0", CUDA: "12.4"}, "", "user", nil, "arch 12.0: not supported by this nvcc (CUDA 12.4 makes 5.0 to 9.0)"},
		{"not a list", machine.ArchRequest{List: "8.0;sm"}, "", "", nil, `arch list "8.0;sm"`},
		{"native", machine.ArchRequest{List: "native 8.0", CUDA: "12.8", Devices: ccs("9.0")}, "8.0 9.0", "user", nil, ""},
		{"native without GPU", machine.ArchRequest{List: "native", CUDA: "12.8"}, "", "user", nil, "none is visible"},
		{"family target beside plain", machine.ArchRequest{List: "10.0 10.0f", CUDA: "13.0"}, "", "user", nil, "nvcc refuses it"},
		{"PTX of an a target", machine.ArchRequest{List: "9.0a+PTX", CUDA: "12.8"}, "9.0a+PTX", "user", []string{"runs on no later GPU"}, ""},
		{"wheel without GPU, 12.4", machine.ArchRequest{CUDA: "12.4"}, "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0+PTX", "fallback", []string{"no GPU is visible"}, ""},
		{"wheel without GPU, 12.8", machine.ArchRequest{CUDA: "12.8"}, "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX", "fallback", []string{"no GPU is visible"}, ""},
		{"wheel without GPU, 13.0", machine.ArchRequest{CUDA: "13.0"}, "7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX", "fallback", []string{"no GPU is visible"}, ""},
		{"JIT without GPU", machine.ArchRequest{CUDA: "12.8", Torch: "2.9.0", JIT: true}, "12.0+PTX", "fallback", []string{"compiling for 12.0 and later"}, ""},
		{"nothing known", machine.ArchRequest{CUDA: "99.0"}, "", "fallback", nil, "none is known for CUDA 99.0"},
		{"torch has no code for the GPU", machine.ArchRequest{CUDA: "12.8", Torch: "2.9.0", Devices: ccs("6.1")}, "6.1+PTX", "devices", []string{"torch itself has no code"}, ""},
		{"flags choose", machine.ArchRequest{CUDA: "12.8", Devices: ccs("9.0"), Flags: []string{"-O3", "-gencode=arch=compute_80,code=sm_80"}}, "", "flags", []string{"-gencode=arch=compute_80"}, ""},
		{"flags that only contain the word", machine.ArchRequest{CUDA: "12.8", Devices: ccs("9.0"), Flags: []string{"-DARCHIVE=1", "-I/src/arch", "-march=native"}}, "9.0+PTX", "devices", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := machine.SelectArchs(tt.req)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q in it", err, tt.err)
				}
				if strings.Contains(tt.err, "not supported by this nvcc") && !errors.Is(err, machine.ErrArchUnsupported) {
					t.Error("the error is not ErrArchUnsupported")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.List.String()); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
			if got.Source != tt.source {
				t.Errorf("source %q, want %q", got.Source, tt.source)
			}
			if len(got.Warnings) != len(tt.warnings) {
				t.Fatalf("warnings %q, want %q", got.Warnings, tt.warnings)
			}
			for i, w := range tt.warnings {
				if !strings.Contains(got.Warnings[i], w) {
					t.Errorf("warning %q lacks %q", got.Warnings[i], w)
				}
			}
		})
	}
}

func parse(s string) compat.ArchList {
	l, err := compat.ParseArchList(s)
	if err != nil {
		panic(err)
	}
	return l
}

// TestSelectArchsProperties: whatever is in the machine, the list covers it, has nothing
// that nvcc cannot make, is in numeric order, and ends in PTX; and the order in which
// GPUs are plugged in changes nothing.
func TestSelectArchsProperties(t *testing.T) {
	known := []string{"5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"}
	rapid.Check(t, func(t *rapid.T) {
		devices := ccs(rapid.SliceOfN(rapid.SampledFrom(known), 1, 6).Draw(t, "devices")...)
		cuda := rapid.SampledFrom(compat.Default().CUDASeries()).Draw(t, "cuda")
		nvcc, ok := compat.Default().Emits(cuda)
		if !ok {
			t.Skip("no list for this toolkit")
		}
		got, err := machine.SelectArchs(machine.ArchRequest{CUDA: cuda, Devices: devices})
		lowest := nvcc.Items()[0].CC()
		tooOld := slices.ContainsFunc(devices, func(d compat.CC) bool {
			return d.Major < lowest.Major || d.Major == lowest.Major && d.Minor < lowest.Minor
		})
		if (err != nil) != tooOld {
			t.Fatalf("error %v for %v with CUDA %s", err, devices, cuda)
		}
		if err != nil {
			return
		}
		items := got.List.Items()
		for _, d := range devices {
			if !got.List.Covers(d) {
				t.Errorf("%s does not cover %s", got.List, d)
			}
			if own := (compat.Arch{Major: d.Major, Minor: d.Minor}); nvcc.Has(own) && !got.List.Has(own) {
				t.Errorf("%s lacks %s, which nvcc can make", got.List, d)
			}
		}
		for i, a := range items {
			if !nvcc.Has(a) {
				t.Errorf("CUDA %s cannot make %s", cuda, a)
			}
			if i > 0 && (a.Major < items[i-1].Major || a.Major == items[i-1].Major && a.Minor <= items[i-1].Minor) {
				t.Errorf("%s is not in order", got.List)
			}
		}
		if !items[len(items)-1].PTX {
			t.Errorf("%s does not end in PTX", got.List)
		}
		shuffled := rapid.Permutation(devices).Draw(t, "shuffled")
		again, err := machine.SelectArchs(machine.ArchRequest{CUDA: cuda, Devices: shuffled})
		if err != nil || again.List.String() != got.List.String() {
			t.Errorf("in another order %s, %v instead of %s", again.List, err, got.List)
		}
		// What was chosen is accepted when said by the user.
		said, err := machine.SelectArchs(machine.ArchRequest{CUDA: cuda, Devices: devices, List: got.List.String()})
		if err != nil || said.List.String() != got.List.String() {
			t.Errorf("said by the user: %s, %v", said.List, err)
		}
	})
}
