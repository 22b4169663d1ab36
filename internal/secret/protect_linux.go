package secret

import "golang.org/x/sys/unix"

// protect keeps other processes of the same user from reading the memory of this one, which has the
// secrets now: by /proc/PID/mem, as a debugger, or from a core file. A superuser still can. Package
// run lifts it for the moment in which it makes a user namespace.
func protect() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }
