#!/bin/sh
# Measures kiln's kernels on the GPU of this machine beside cuBLAS; see gpucheck.sh for what it needs. The table, the JSON and, with
# KILN_BASELINE, the comparison go to the folder given, if one is. More arguments are those of kiln-gpu bench.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
[ $# -eq 0 ] || shift
gpu=${KILN_GPU:-.cache/gpu/kiln/kiln-gpu}

if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/bench-driver.txt"
fi
"$gpu" bench --format exl2-4,gptq,exl2-8/5/4 --cublas "${KILN_CUBLAS:-}" --report "$out/bench.json" "$@" >"$out/bench.txt" 2>&1 || {
	cat "$out/bench.txt"
	exit 1
}
cat "$out/bench.txt"
if [ -n "${KILN_BASELINE:-}" ]; then
	code=0
	python3 dev/scripts/gpucompare.py "$out/bench.json" "$KILN_BASELINE" >"$out/compare.txt" || code=$?
	cat "$out/compare.txt"
	exit $code
fi
