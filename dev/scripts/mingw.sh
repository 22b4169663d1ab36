#!/usr/bin/env bash
# Installs mingw-w64's C compiler for Windows on x86-64, where it is absent.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'mingw: %s\n' "$*" >&2; }

. dev/scripts/apt.sh

command -v x86_64-w64-mingw32-gcc >/dev/null || install gcc-mingw-w64-x86-64
