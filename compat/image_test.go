package compat_test

import (
	"testing"

	"github.com/kiln-build/kiln/compat"
)

func TestImageGLIBC(t *testing.T) {
	for image, want := range map[string]string{
		"nvidia/cuda:13.0.2-devel-ubuntu22.04":                 "2.35",
		"nvidia/cuda:12.8.1-devel-rockylinux8":                 "2.28",
		"nvidia/cuda:12.8.1-devel-ubi9":                        "2.34",
		"docker.io/nvidia/cuda:12.4.1-cudnn-devel-ubuntu20.04": "2.31",
		"pytorch/manylinux2_28-builder:cuda12.8":               "2.28",
		"quay.io/pypa/manylinux_2_34_x86_64":                   "2.34",
		"quay.io/pypa/manylinux2014_x86_64":                    "2.17",
		"python:3.12-slim-bookworm":                            "2.36",
		"debian:13":                                            "2.41",
		"almalinux:9":                                          "2.34",
		"rocm/dev-ubuntu-24.04:6.4":                            "2.39",
		"python:3.12-slim":                                     "", // the newest Debian of the day
		"alpine:3.20":                                          "",
		"registry.example/models8:latest":                      "",
		"localhost/kiln-e2e/trixie-cuda124":                    "2.41",
	} {
		if got := compat.Default().ImageGLIBC(image); got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}
