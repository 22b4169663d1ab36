package main

import "syscall"

func maxRSS(u *syscall.Rusage) int64 { return u.Maxrss * 1024 }
