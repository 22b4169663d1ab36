// Command bridge runs the real compiler, a program of Linux, for the stand-ins of Visual C++, which
// are programs of Windows and end when their job object does. A request is a line of JSON; what
// follows the byte 1 in an argument is a path of Windows. The compiler is killed when the
// connection ends.
//
//	bridge PREFIX FILE   listen, and write the address to FILE; PREFIX is that of Wine
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

type request struct {
	Argv []string
	Dir  string
	Env  []string
}

type reply struct {
	Output string
	Code   int
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = os.WriteFile(os.Args[2], []byte(listener.Addr().String()), 0o666)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bridge:", err)
		os.Exit(1)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		go serve(conn, os.Args[1])
	}
}

func serve(conn net.Conn, prefix string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	line, err := in.ReadBytes('\n')
	var r request
	if err != nil || json.Unmarshal(line, &r) != nil {
		return
	}
	for i, arg := range r.Argv {
		if flag, file, ok := strings.Cut(arg, "\x01"); ok {
			r.Argv[i] = flag + outside(prefix, r.Dir, file)
		}
	}
	var out strings.Builder
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = outside(prefix, "", r.Dir), &out, &out, append(os.Environ(), r.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	code := 127
	if err := cmd.Start(); err == nil {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, in) // until the stand-in is gone, or has its answer
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}()
		_ = cmd.Wait()
		code = cmd.ProcessState.ExitCode()
	} else {
		out.WriteString(err.Error())
	}
	text, _ := json.Marshal(reply{out.String(), code})
	_, _ = conn.Write(append(text, '\n'))
}

// outside is what a path of Windows is called here: names there are the same in any case.
func outside(prefix, dir, name string) string {
	name = strings.ReplaceAll(name, `\`, "/")
	if len(name) < 2 || name[1] != ':' {
		if dir == "" {
			return name
		}
		return outside(prefix, "", dir+"/"+name)
	}
	at := filepath.Join(prefix, "dosdevices", strings.ToLower(name[:2]))
	for part := range strings.SplitSeq(strings.Trim(name[2:], "/"), "/") {
		next := filepath.Join(at, part)
		if _, err := os.Lstat(next); err != nil && part != "" {
			entries, _ := os.ReadDir(at)
			for _, e := range entries {
				if strings.EqualFold(e.Name(), part) {
					next = filepath.Join(at, e.Name())
				}
			}
		}
		at = next
	}
	return at
}
