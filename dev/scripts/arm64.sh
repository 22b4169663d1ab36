#!/usr/bin/env bash
# Runs the tests of the packages with assembly for arm64 on this machine, under qemu if it is another one. PKG and RUN limit
# them as in "make test". Installs qemu-user-static if there is none and that is possible.
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=${PKG:-"./model/tensor ./model/quant ./model/quant/internal/kernels"}

say() { printf 'arm64: %s\n' "$*" >&2; }
. dev/scripts/apt.sh

qemu=
if [ "$(uname -m)" != aarch64 ] && [ "$(uname -m)" != arm64 ]; then
  find_qemu() { command -v qemu-aarch64-static || command -v qemu-aarch64; }
  if ! find_qemu >/dev/null; then
    install qemu-user-static
  fi
  qemu=$(find_qemu)
  say "under $("$qemu" --version | head -n 1)"
fi

# -exec is what runs the test binaries. Short: the processor is emulated, and every kernel is tested in short mode too.
args=(-short -count=1 -timeout 30m)
if [ -n "${RUN:-}" ]; then
  args+=(-run "$RUN")
fi
if [ -n "$qemu" ]; then
  args+=(-exec "$qemu")
fi
# shellcheck disable=SC2086 # several packages
GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go test "${args[@]}" $packages
