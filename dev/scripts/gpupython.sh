#!/usr/bin/env bash
# The Python package on a GPU, with torch: results equal to the Go path's, LoRAX's calls, streams,
# graphs, errors, leaks, what a call costs, and the memory of a process with 200 layers. $1 is the
# folder with the wheel and the program gpupython (made here if the go command is there); PYTHON is
# an interpreter with torch and numpy. The report is report.txt in that folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

home=${1:-.cache/gpu-python}
python=${PYTHON:-python3}
mkdir -p "$home"
if command -v go >/dev/null; then
  rm -f "$home"/*.whl
  "$python" python/backend.py "$home"
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$home/gpupython" ./dev/scripts/gpupython
fi
if [ "${2:-}" = build ]; then exit; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m zipfile -e "$home"/kiln_kernels-*.whl "$scratch/site"
export PYTHONPATH=$scratch/site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 KILN_TEST_DEVICE=cuda
unset KILN_LIBRARY

chmod +x "$home/gpupython"
{
  date -u
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  "$home/gpupython" >"$scratch/go.json"
  (cd python/tests && "$python" goldens.py cuda) >"$scratch/python.json"
  "$python" - "$scratch" <<'PY'
import json, sys

mine, other = (json.load(open(sys.argv[1] + "/" + n)) for n in ("python.json", "go.json"))
wrong = [n for n in other if mine.get(n) != other[n]]
if len(other) != 21 or wrong:
    sys.exit("Python and Go differ for %s of %d matrices" % (wrong, len(other)))
print("goldens      21 matrices: products and weights are the same bits through Python as through Go")
PY
  failed=0
  (cd python/tests && "$python" -m unittest test_fast test_quant test_lorax) 2>&1 || failed=1
  (cd python/tests && "$python" gpu.py) || failed=1
  "$python" dev/scripts/gpumemory.py || failed=1
  exit $failed
} 2>&1 | tee "$home/report.txt"
