//go:build !linux

package e2e_test

import "testing"

func mount(t *testing.T, _, _ string) { t.Skip("needs Linux") }
