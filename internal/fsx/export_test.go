package fsx

// MoveAside is the way of RenameDir on systems that cannot exchange two folders.
var MoveAside = moveAside

// CopyBuffered is the way of CopyRange where the kernel cannot copy.
var CopyBuffered = copyBuffered
