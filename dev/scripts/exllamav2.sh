#!/usr/bin/env bash
# Makes .cache/venv-exllamav2, in which exllamav2 can be imported on a machine without a GPU, from
# dev/python/exllamav2.txt. Needs what dev/scripts/deps.sh installs. Does nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

requirements=dev/python/exllamav2.txt
base=.cache/venv/bin/python
venv=.cache/venv-exllamav2
stamp=$venv/.made-from

say() { printf 'exllamav2: %s\n' "$*" >&2; }

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  say "PyTorch without the CUDA libraries was only tried on Linux x86_64, not on $(uname -sm)"
  exit 1
fi
if command -v flock >/dev/null; then
  exec 9>.cache/exllamav2.lock
  flock 9
fi

# The venv is made again when the interpreter, the list of packages or this script changes.
made_from=$("$base" -c 'import sys; print(sys.base_prefix, sys.version)'; cat "$requirements" dev/scripts/exllamav2.sh)
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
  exit 0
fi
say "making $venv (a download of 550 MB)"
rm -rf "$venv"
"$base" -m venv "$venv"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input install --no-deps -r "$requirements"

# Empty libraries in place of those that PyTorch names and this machine does not have. The loader is satisfied with the name,
# because load_exllamav2.py asks it to look functions up when they are called.
torch=$(echo "$venv"/lib/python3*/site-packages/torch/lib)
missing=$(ldd "$torch/libtorch_python.so" "$torch/libtorch_cuda.so" | sed -n 's/^\s*\(\S*\) => not found$/\1/p' | sort -u)
for library in $missing; do
  "${CC:-cc}" -shared -nostdlib -Wl,-soname,"$library" -o "$torch/$library" -x c /dev/null
done
"$venv/bin/python" -c 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY); import torch; torch.zeros(2).half().sum()' || {
  say "PyTorch cannot be loaded with empty libraries in place of:" $missing
  exit 1
}
printf '%s\n' "$made_from" >"$stamp"
