#!/bin/sh
# Checks and measures kiln's kernels on the GPU of this machine, which needs a driver and no Go: build the program first
# with
#     go build -o .cache/gpu/kiln/kiln-gpu ./cmd/kiln-gpu
# Reports go to the folder given, if one is.
set -eu
cd "$(dirname "$0")/.."
out=${1:-$(mktemp -d)}
gpu=${KILN_GPU:-.cache/gpu/kiln/kiln-gpu}
"$gpu" probe
for flags in "" --ptx; do
	# shellcheck disable=SC2086 # no flag is no argument
	"$gpu" check $flags --golden quant/testdata >"$out/check$flags.txt" 2>&1 || {
		cat "$out/check$flags.txt"
		exit 1
	}
	echo "check $flags: $(grep -c exact "$out/check$flags.txt") golden matrices exact, suite $(tail -n 1 "$out/check$flags.txt")"
done
"$gpu" bench --json >"$out/bench.json"
"$gpu" bench --no-cublas --format exl2-4,gptq,exl2-8/5/4 | tee "$out/bench.txt"
