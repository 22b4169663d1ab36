package machine

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/windows/registry"
)

// rawShell hands a line to cmd as it is: cmd does not know the quotes that other programs take.
func rawShell(cmd *exec.Cmd) {
	name := strings.TrimSuffix(strings.ToLower(filepath.Base(cmd.Args[0])), ".exe")
	if last := len(cmd.Args) - 1; name == "cmd" && last > 1 {
		line := strings.Join(cmd.Args[:last-1], " ") + ` /s /c "` + cmd.Args[last] + `"`
		cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: line}
	}
}

func localRegistry(key, value string) (string, bool) {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, key, registry.QUERY_VALUE|registry.WOW64_32KEY)
	if err != nil {
		return "", false
	}
	defer k.Close()
	s, _, err := k.GetStringValue(value)
	return s, err == nil
}

// LongPaths reports whether programs of this machine take paths of any length, if they are made for it.
func LongPaths() bool {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Control\FileSystem`, registry.QUERY_VALUE)
	if err != nil {
		return false
	}
	defer k.Close()
	n, _, err := k.GetIntegerValue("LongPathsEnabled")
	return err == nil && n != 0
}
