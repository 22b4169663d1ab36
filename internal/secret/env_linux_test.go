package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/internal/secret"
)

// programEnv makes this program one that begins as kiln does, and says what there is to see of it.
const programEnv = "KILN_SECRET_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) == "" {
		os.Exit(m.Run())
	}
	s, err := secret.Main()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	environ, _ := os.ReadFile("/proc/self/environ")
	cmdline, _ := os.ReadFile("/proc/self/cmdline")
	open, _ := os.ReadDir("/proc/self/fd")
	dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	child, _ := exec.Command("env").Output() //nolint:noctx // ends at once
	_ = json.NewEncoder(os.Stdout).Encode(seen{
		Shown: string(bytes.Join([][]byte{environ, cmdline, child}, nil)) + strings.Join(os.Args, " ") + strings.Join(os.Environ(), " "),
		Token: s.Getenv("KILN_TOKEN"), Index: s.URL(os.Getenv("PIP_INDEX_URL")).Full(), Flag: s.URL("http://flag.example/x").Full(),
		Given: s.URL("https://given.example/").Full(), All: strings.Join(s.Environ(nil), "\n"), Open: len(open), Dumpable: dumpable, PID: os.Getpid(),
	})
	os.Exit(0)
}

type seen struct {
	Shown, Token, Index, Flag, Given, All string
	Open, Dumpable, PID                   int
}

func program(t testing.TB, args []string, env ...string) (*exec.Cmd, *seen) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append([]string{programEnv + "=1", "PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := &seen{}
	if err := json.Unmarshal(out, got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return cmd, got
}

// TestReplaceProcess: after Main neither the environment nor the arguments of the process have a
// secret, whoever looks; the program has them all.
func TestReplaceProcess(t *testing.T) {
	cmd, got := program(t, []string{"build", "--index-url=http://u:planted1@flag.example/x"},
		"KILN_TOKEN=planted2", "PIP_INDEX_URL=https://u:planted3@index.example/simple", "AWS_SECRET_ACCESS_KEY=planted4", "SOME_API_KEY=planted5",
		"https_proxy=http://u:planted6@proxy.example:3128", secret.HandoverEnv+`=["https://u:planted7@given.example/"]`, "PLAIN=kept")
	if strings.Contains(got.Shown, "planted") {
		t.Errorf("it shows %s", got.Shown)
	}
	for _, want := range []string{"PLAIN=kept", "--index-url=http://flag.example/x", "PIP_INDEX_URL=https://index.example/simple", "https_proxy=http://proxy.example:3128"} {
		if !strings.Contains(got.Shown, want) {
			t.Errorf("%s is missing in %s", want, got.Shown)
		}
	}
	if got.Token != "planted2" || got.Index != "https://u:planted3@index.example/simple" || got.Flag != "http://u:planted1@flag.example/x" || got.Given != "https://u:planted7@given.example/" {
		t.Errorf("the program has %+v", got)
	}
	for _, want := range []string{"KILN_TOKEN=planted2", "AWS_SECRET_ACCESS_KEY=planted4", "SOME_API_KEY=planted5", "https_proxy=http://u:planted6@proxy.example:3128"} {
		if !strings.Contains(got.All, want) {
			t.Errorf("Environ lacks %s", want)
		}
	}
	if got.PID != cmd.Process.Pid {
		t.Error("it is another process")
	}
	if got.Dumpable != 0 {
		t.Error("its memory can be read by others")
	}
	if _, plain := program(t, nil, "PLAIN=kept"); got.Open > plain.Open {
		t.Errorf("%d descriptors are open, %d without secrets", got.Open, plain.Open)
	} else if plain.Dumpable == 0 {
		t.Error("a process without secrets is closed to debuggers")
	}
}

// Many secrets of others do not keep kiln from starting.
func TestManySecrets(t *testing.T) {
	env := []string{"KILN_TOKEN=planted"}
	for i := range 40 {
		env = append(env, fmt.Sprintf("KEY%d_PRIVATE_KEY=%s", i, strings.Repeat("planted", 200)))
	}
	if _, got := program(t, nil, env...); got.Token != "planted" || strings.Contains(got.Shown, "planted") {
		t.Errorf("%.200s", got.Shown)
	}
}

// BenchmarkMain is what taking secrets out of the process costs: one more start.
func BenchmarkMain(b *testing.B) {
	for name, env := range map[string][]string{"without": nil, "with": {"KILN_TOKEN=planted"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				program(b, nil, env...)
			}
		})
	}
}
