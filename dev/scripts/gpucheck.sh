#!/bin/sh
# Checks kiln's kernels on the GPU of this machine, which needs a driver and no Go: build the program first with
#     go build -o .cache/gpu/kiln/kiln-gpu ./cmd/kiln-gpu
# Reports go to the folder given, if one is. KILN_NVRTC and KILN_CUBLAS name libraries that the loader does not find.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
gpu=${KILN_GPU:-.cache/gpu/kiln/kiln-gpu}

date -u +%FT%TZ
if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
"$gpu" probe

# check NAME FLAGS... runs everything with one way to get the kernels. Exit code 3 is a library that is not here.
check() {
	name=$1
	shift
	code=0
	"$gpu" check "$@" --golden model/quant/testdata >"$out/check-$name.txt" 2>&1 || code=$?
	case $code in
	0) echo "check $name: $(grep -c exact "$out/check-$name.txt") golden matrices exact, suite $(tail -n 1 "$out/check-$name.txt")" ;;
	3) echo "check $name: left out: $(tail -n 1 "$out/check-$name.txt")" ;;
	*)
		cat "$out/check-$name.txt"
		exit 1
		;;
	esac
}
check code
check ptx --ptx
check jit --jit --nvrtc "${KILN_NVRTC:-}" --jit-cache "$out/jit"
check cublas --with-cublas "${KILN_CUBLAS:-auto}"

# sanitize TOOL FLAGS...
sanitize() {
	tool=$1
	shift
	compute-sanitizer --tool "$tool" --error-exitcode 9 "$gpu" check "$@" --quick --golden model/quant/testdata >"$out/sanitizer-$tool.txt" 2>&1 || {
		tail -n 40 "$out/sanitizer-$tool.txt"
		exit 1
	}
	echo "compute-sanitizer $tool: $(grep 'SUMMARY' "$out/sanitizer-$tool.txt")"
}
if command -v compute-sanitizer >/dev/null; then
	sanitize memcheck
	# See KILN_RACECHECK in wgmma.cu.
	if command -v nvcc >/dev/null; then
		dev/scripts/gpubuild.sh "$out/racecheck" -DKILN_RACECHECK
		sanitize racecheck --kernels "$out/racecheck"
	else
		echo "compute-sanitizer racecheck: left out, there is no nvcc to compile kernels for it"
	fi
else
	echo "compute-sanitizer: left out, there is none"
fi
