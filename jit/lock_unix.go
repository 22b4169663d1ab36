//go:build unix

package jit

import "syscall"

// noLocks are the errors of file systems that cannot lock.
var noLocks = []error{syscall.ENOLCK, syscall.EOPNOTSUPP, syscall.ENOSYS}
