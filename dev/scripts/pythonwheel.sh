#!/usr/bin/env bash
# kiln's Python package, made by kiln: plans, builds, audits and tests the row of examples/kiln-python, publishes the wheel
# into an index, serves that, installs from it with pip into an empty environment, and multiplies with it on the CPU.
# Everything is in .cache/kiln-python; what is there from an earlier run is used again. KILN names another kiln.
set -euo pipefail
cd "$(dirname "$0")/../.."

kiln=${KILN:-$PWD/bin/kiln}
home=$PWD/.cache/kiln-python
python=${PYTHON:-$(dev/scripts/deps.sh python)}
file=examples/kiln-python/packages.yml

step() { printf '\n$ %s\n' "$*" | sed "s|$PWD/||g; s|bin/kiln|kiln|" >&2; "$@"; }

mkdir -p "$home"
step "$kiln" plan -f "$file"
step "$kiln" build -f "$file" --dist "$home/dist" --state "$home/state"
wheel=$(ls -t "$home"/dist/kiln_kernels-*.whl | head -n 1)
step "$kiln" audit "$wheel"
rm -rf "$home/public" "$home/index"
step "$kiln" publish -f "$file" --dist "$home/dist" --state "$home/state" --to "dir:$home/public" --no-index --release 1
step "$kiln" index generate --wheels-dir "$home"/public/v* --output-dir "$home/index"

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
"$kiln" serve --dir "$home/index" --addr "127.0.0.1:$port" --read-only >"$home/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 150); do
  if "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "$url/simple/" 2>/dev/null; then break; fi
  kill -0 $server 2>/dev/null || { cat "$home/serve.log" >&2; exit 1; }
  sleep 0.2
done

rm -rf "$home/venv"
"$python" -m venv "$home/venv"
step "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check --index-url "$url/simple/" kiln-kernels
"$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy
step "$home/venv/bin/python" examples/kiln-python/multiply.py
