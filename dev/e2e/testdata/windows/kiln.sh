#!/usr/bin/env bash
# Stands for the shell of a runner with Windows: `kiln` is the kiln.exe on PATH, and the runner's variables have paths of Windows. The
# archives of CUDA come from the test instead of NVIDIA.
set -euo pipefail
for name in RUNNER_TEMP RUNNER_TOOL_CACHE GITHUB_WORKSPACE GITHUB_ENV GITHUB_PATH GITHUB_OUTPUT GITHUB_STEP_SUMMARY; do
  if [ -n "${!name:-}" ]; then export "$name=Z:${!name//\//\\}"; fi
done
program=$(tr ':' '\n' <<<"$PATH" | while read -r dir; do if [ -f "$dir/kiln.exe" ]; then echo "$dir/kiln.exe"; fi; done | head -n 1)
WINEPATH=$(grep -oE '[A-Z]:\\[^:]*' <<<"$PATH" | paste -s -d ';' || true)
export WINEPATH
if [ "${1:-} ${2:-}" = "workflow cuda" ]; then set -- "$@" --source "$CUDA_ARCHIVES"; fi
echo "$@" >>/tmp/kiln-calls
exec wine "${program:?no kiln.exe on PATH}" "$@"
