#!/usr/bin/env bash
# Models of Llama 3.1 8B's and 70B's shapes with random weights, in transformers through kiln, beside exllamav2's own model class and
# transformers in half precision. $1 is the folder for what is made here; PYTHON is an interpreter with torch, transformers and peft,
# EXLLAMAV2 a folder with the package exllamav2 (its extension is compiled there). SHAPES and WIDTHS limit it: where a command may
# take ten minutes, one call for each shape. Needs 45 GB in TMPDIR for the 70B shape. The report is report.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."

home=${1:-.cache/gpu-transformers}
python=${PYTHON:-python3}
script=$PWD/dev/scripts/gputransformers.py
mkdir -p "$home"
if command -v go >/dev/null; then
  rm -f "$home"/*.whl
  "$python" python/backend.py "$home"
fi
if [ "${2:-}" = build ]; then exit; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m zipfile -e "$home"/*.whl "$scratch/site"
export PYTHONPATH=$scratch/site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
unset KILN_LIBRARY
failed=0
run() { printf '\n== %s\n' "$*"; "$python" "$script" "$@" || failed=1; }
{
  date -u
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  for widths in ${WIDTHS:-4.0 mixed}; do
    for shape in ${SHAPES:-8b 70b}; do
      run make "$shape" "$widths" "$scratch/model"
      run kiln "$scratch/model"
      run embedding "$scratch/model"
      if [ -n "${EXLLAMAV2:-}" ]; then
        PYTHONPATH=$EXLLAMAV2 run exllamav2 "$scratch/model"
      else
        printf '\n== exllamav2: NOT COMPARED, EXLLAMAV2 names no folder\n'
      fi
      if [ "$shape $widths" = "8b 4.0" ]; then
        run fp16 "$scratch/model"
        run compile "$scratch/model"
        run lora "$scratch/model"
        printf '\n== python -m kiln.generate\n'
        "$python" -m kiln.generate "$scratch/model" --tokens 1,15,7 --max-tokens 256 || failed=1
      fi
      rm -rf "$scratch/model"
    done
  done
  exit $failed
} 2>&1 | tee "$home/report.txt"
