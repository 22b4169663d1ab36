#!/bin/sh
# Checks kiln's kernels on the GPU of this machine, which needs a driver and no Go: build the
# program first with
#     go build -o .cache/gpu/kiln/kiln-gpu ./cmd/kiln-gpu
# All parts run at once, as most of their time is the processor's. Reports go to the folder given,
# if one is. KILN_NVRTC and KILN_CUBLAS name libraries that the loader does not find.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-$(mktemp -d)}
gpu=${KILN_GPU:-.cache/gpu/kiln/kiln-gpu}

date -u +%FT%TZ
if command -v nvidia-smi >/dev/null; then
	nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
"$gpu" probe

# check NAME FLAGS... runs everything with one way to get the kernels. Exit code 3 is a library that
# is not here.
check() {
	name=$1
	shift
	code=0
	"$gpu" check "$@" --golden model/quant/testdata >"$out/check-$name.txt" 2>&1 || code=$?
	case $code in
	0) echo "check $name: $(grep -c exact "$out/check-$name.txt") golden matrices exact, suite $(tail -n 1 "$out/check-$name.txt")" ;;
	3) echo "check $name: left out: $(tail -n 1 "$out/check-$name.txt")" ;;
	*)
		tail -n 40 "$out/check-$name.txt"
		echo "check $name: FAILED"
		return 1
		;;
	esac
}

# sanitize NAME TOOL FLAGS...
sanitize() {
	name=$1 tool=$2
	shift 2
	compute-sanitizer --tool "$tool" --error-exitcode 9 "$gpu" check "$@" >"$out/sanitizer-$name.txt" 2>&1 || {
		tail -n 40 "$out/sanitizer-$name.txt"
		echo "compute-sanitizer $name: FAILED"
		return 1
	}
	echo "compute-sanitizer $name: $(grep 'SUMMARY' "$out/sanitizer-$name.txt")"
}

# racecheck needs a build of its own; see KILN_RACECHECK in wgmma.cuh.
racecheck() {
	dev/scripts/gpubuild.sh "$out/racecheck" -DKILN_RACECHECK
	sanitize racecheck racecheck --each-kernel --kernels "$out/racecheck"
}

pids=
beside() {
	"$@" &
	pids="$pids $!"
}
beside check code
beside check ptx --ptx --repeats 100
beside check jit --jit --nvrtc "${KILN_NVRTC:-}" --jit-cache "$out/jit" --repeats 100
beside check cublas --with-cublas "${KILN_CUBLAS:-auto}"
# Kernels of older devices, on this one.
beside check 7.5 --capability 7.5 --repeats 100
beside check 6.0 --capability 6.0 --repeats 100
if command -v compute-sanitizer >/dev/null; then
	beside sanitize memcheck memcheck --quick --golden model/quant/testdata
	beside sanitize memcheck-7.5 memcheck --each-kernel --capability 7.5
	beside sanitize memcheck-6.0 memcheck --each-kernel --capability 6.0
	beside sanitize racecheck-7.5 racecheck --each-kernel --capability 7.5
	beside sanitize racecheck-6.0 racecheck --each-kernel --capability 6.0
	if command -v nvcc >/dev/null; then
		beside racecheck
	else
		echo "compute-sanitizer racecheck: left out, there is no nvcc to compile kernels for it"
	fi
else
	echo "compute-sanitizer: left out, there is none"
fi
failed=0
for pid in $pids; do
	wait "$pid" || failed=1
done
exit $failed
