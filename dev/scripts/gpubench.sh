#!/bin/sh
# Measures kiln's kernels on the GPU of this machine beside cuBLAS; see gpucheck.sh for what it
# needs. The tables, the JSON and, with KILN_BASELINE, the comparison go to the folder given, if one
# is. More arguments are those of kiln-gpu bench.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
[ $# -eq 0 ] || shift
gpu=${KILN_GPU:-.cache/gpu/kiln/kiln-gpu}

if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee "$out/bench-driver.txt"
fi
# Products of thousands of rows may be left to cuBLAS, as the Python package does; exit code 3: there
# is none.
bench() {
	"$gpu" bench --format gptq,exl2-4,exl2-8/5/4,exl2-6/5/3 --m 1,2,4,8,16,32,64,128,256,512,1024,2048,4096 \
		--report "$out/bench.json" "$@" >"$out/bench.txt" 2>&1
}
code=0
bench --cublas "${KILN_CUBLAS:-}" --with-cublas "${KILN_CUBLAS:-auto}" "$@" || code=$?
if [ $code = 3 ]; then
	code=0
	bench --no-cublas "$@" || code=$?
fi
cat "$out/bench.txt"
[ $code = 0 ] || exit $code
if [ -n "${KILN_BASELINE:-}" ]; then
	python3 dev/scripts/gpucompare.py "$out/bench.json" "$KILN_BASELINE" >"$out/compare.txt" || code=$?
	cat "$out/compare.txt"
	exit $code
fi
