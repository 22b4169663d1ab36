//go:build !linux

package main

import "context"

// attackOthers needs limits that only Linux has.
func attackOthers(context.Context, config, string) ([]*result, error) { return nil, nil }
