#!/bin/sh
# Compiles the kernels of model/quant/cuda for the GPU of this machine, in parallel, into a folder
# for kiln-gpu --kernels. For work on kernels; what is committed is made by go generate. More
# arguments go to nvcc.
set -eu
out=${1:?usage: gpubuild.sh FOLDER [FLAG...]}
shift
src=$(dirname "$0")/../../model/quant/cuda/kernels
mkdir -p "$out"
pids=
for module in pack gemm wgmma tall; do
	(
		nvcc -std=c++17 -O3 "$@" -Xptxas -v -cubin -gencode=arch=compute_90a,code=sm_90a -o "$out/$module.cubin" "$src/$module.cu" >"$out/$module.log" 2>&1 ||
			{ cat "$out/$module.log"; exit 1; }
		gzip -9 -c "$out/$module.cubin" >"$out/$module.cubin.gz"
	) &
	pids="$pids $!"
done
for pid in $pids; do
	wait "$pid"
done
{
	echo '{"files":['
	for module in pack gemm wgmma tall; do
		[ "$module" = pack ] || echo ,
		echo "{\"name\":\"$module.cubin.gz\",\"module\":\"$module\",\"major\":9,\"specific\":true}"
	done
	echo ']}'
} >"$out/images.json"
