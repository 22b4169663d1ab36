#!/usr/bin/env bash
# Makes .cache/venv-NAME, with PyTorch on a machine without a GPU, from dev/python/NAME.txt: exllamav2 or transformers. Packages of
# dev/python/NAME-N.txt go to .cache/venv-NAME/N. Needs what dev/scripts/deps.sh installs. Does nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=$1
requirements=dev/python/$name.txt
base=.cache/venv/bin/python
venv=.cache/venv-$name
stamp=$venv/.made-from

say() { printf '%s: %s\n' "$name" "$*" >&2; }

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  say "PyTorch without the CUDA libraries was only tried on Linux x86_64, not on $(uname -sm)"
  exit 1
fi
if command -v flock >/dev/null; then
  exec 9>".cache/$name.lock"
  flock 9
fi

# The venv is made again when the interpreter, the list of packages or this script changes.
made_from=$("$base" -c 'import sys; print(sys.base_prefix, sys.version)'; cat dev/python/"$name"*.txt dev/scripts/torchvenv.sh)
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
  exit 0
fi
say "making $venv (a download of 550 MB)"
rm -rf "$venv"
"$base" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input install --no-deps "$@"; }
pip -r "$requirements"
for more in dev/python/"$name"-*.txt; do
  [ -e "$more" ] || continue
  number=${more#"dev/python/$name-"}
  pip --target "$venv/${number%.txt}" -r "$more"
done

# Empty libraries in place of those that PyTorch names and this machine does not have. The loader is satisfied with the name,
# because it is asked to look functions up when they are called.
site=$(echo "$venv"/lib/python3*/site-packages)
missing=$(ldd "$site/torch/lib/libtorch_python.so" "$site/torch/lib/libtorch_cuda.so" | sed -n 's/^\s*\(\S*\) => not found$/\1/p' | sort -u)
for library in $missing; do
  "${CC:-cc}" -shared -nostdlib -Wl,-soname,"$library" -o "$site/torch/lib/$library" -x c /dev/null
done
echo 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY)' >"$site/lazy.pth"
"$venv/bin/python" -c 'import torch; torch.zeros(2).half().sum()' || {
  say "PyTorch cannot be loaded with empty libraries in place of:" $missing
  exit 1
}
printf '%s\n' "$made_from" >"$stamp"
