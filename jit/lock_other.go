//go:build !unix

package jit

// noLocks are the errors of file systems that cannot lock.
var noLocks []error
