package memory

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func reader(files fstest.MapFS) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) { return fs.ReadFile(files, strings.TrimPrefix(name, "/")) }
}

func TestRead(t *testing.T) {
	const gib = 1 << 30
	meminfo := "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   25165824 kB\n" // 32 and 24 GiB
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const (
		mountV2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		mountV1 = "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	)
	tests := []struct {
		name  string
		files fstest.MapFS
		want  Info
	}{
		{"plain", fstest.MapFS{}, Info{32 * gib, 24 * gib, "machine"}},
		{"old kernel", fstest.MapFS{"proc/meminfo": file("MemTotal: 1024 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 3 kB\n")}, Info{1 << 20, 123 << 10, "machine"}},
		{"v2", fstest.MapFS{
			"proc/self/cgroup": file("0::/user/kiln\n"), "proc/self/mountinfo": file(mountV2),
			"sys/fs/cgroup/user/kiln/memory.max":     file("8589934592\n"),
			"sys/fs/cgroup/user/kiln/memory.current": file("3221225472\n"),
			"sys/fs/cgroup/user/kiln/memory.stat":    file("anon 2147483648\ninactive_file 1073741824\n"),
		}, Info{8 * gib, 6 * gib, "cgroup"}},
		{"v2, limit above", fstest.MapFS{
			"proc/self/cgroup": file("0::/user/kiln\n"), "proc/self/mountinfo": file(mountV2),
			"sys/fs/cgroup/user/kiln/memory.max": file("max\n"),
			"sys/fs/cgroup/user/memory.max":      file("4294967296\n"),
			"sys/fs/cgroup/user/memory.current":  file("0\n"),
		}, Info{4 * gib, 4 * gib, "cgroup"}},
		{"v2, in a container", fstest.MapFS{
			"proc/self/cgroup": file("0::/\n"), "proc/self/mountinfo": file("30 25 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
			"sys/fs/cgroup/memory.max": file("6442450944\n"), "sys/fs/cgroup/memory.current": file("1073741824\n"),
		}, Info{6 * gib, 5 * gib, "cgroup"}},
		{"v1", fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"), "proc/self/mountinfo": file(mountV1),
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": file("2147483648\n"),
			"sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": file("1073741824\n"),
			"sys/fs/cgroup/memory/docker/abc/memory.stat":           file("total_inactive_file 536870912\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":            file("9223372036854771712\n"),
		}, Info{2 * gib, 3 * gib / 2, "cgroup"}},
		{"v1, mounted from the group", fstest.MapFS{
			"proc/self/cgroup":                           file("4:memory:/docker/abc\n"),
			"proc/self/mountinfo":                        file("32 25 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("2147483648\n"),
			"sys/fs/cgroup/memory/memory.usage_in_bytes": file("2147483649\n"),
		}, Info{2 * gib, 0, "cgroup"}},
		{"limit larger than the machine", fstest.MapFS{
			"proc/self/cgroup": file("0::/\n"), "proc/self/mountinfo": file(mountV2),
			"sys/fs/cgroup/memory.max": file("68719476736\n"), "sys/fs/cgroup/memory.current": file("0\n"),
		}, Info{32 * gib, 24 * gib, "machine"}},
	}
	for _, tt := range tests {
		if tt.files["proc/meminfo"] == nil {
			tt.files["proc/meminfo"] = file(meminfo)
		}
		got, err := ReadLinux(reader(tt.files))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for _, text := range []string{"", "MemFree: 1 kB\n"} {
		if _, err := ReadLinux(reader(fstest.MapFS{"proc/meminfo": file(text)})); err == nil {
			t.Errorf("meminfo %q: no error", text)
		}
	}

	here, err := Read()
	if err != nil || here.AvailableBytes <= 0 || here.AvailableBytes > here.TotalBytes || here.BudgetBytes() <= 0 || here.BudgetBytes() >= here.TotalBytes {
		t.Errorf("this machine: %+v, budget %d, %v", here, here.BudgetBytes(), err)
	}
	for _, tt := range []struct{ total, available, want int64 }{
		{32 * gib, 24 * gib, 24*gib - 32*gib/10}, // a tenth
		{8 * gib, 7 * gib, 5 * gib},              // 2 GiB
		{2 * gib, 1 * gib, gib / 2},              // half, on a small one
		{880 * gib, 3 * gib, 3 * gib / 2},
	} {
		if got := (Info{TotalBytes: tt.total, AvailableBytes: tt.available}).BudgetBytes(); got != tt.want {
			t.Errorf("budget of %+v is %d", tt, got)
		}
	}
}
