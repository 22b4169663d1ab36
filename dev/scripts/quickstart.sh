#!/usr/bin/env bash
# The main job, from source to an installed wheel, with what is in this repository: plans, builds, audits and tests
# examples/hello-cuda, makes an index of the result, serves it, and installs from it with pip. Everything it makes is in
# .cache/quickstart; what is there from an earlier run is used again. PYTHON names the interpreter to build for,
# QUICKSTART_HOME another folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

kiln=$PWD/bin/kiln
home=${QUICKSTART_HOME:-$PWD/.cache/quickstart}
python=${PYTHON:-$(dev/scripts/deps.sh python)}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

step() { printf '\n$ %s\n' "$*" | sed "s|$home|.cache/quickstart|g; s|$kiln|kiln|g" >&2; "$@"; }

# The example is written for Python 3.11; it is built for the Python of this machine.
mkdir -p "$home"
rm -rf "$home/hello-cuda.new"
cp -r examples/hello-cuda "$home/hello-cuda.new"
sed -i.bak "s/python: \"3.11\"/python: \"$version\"/; s/os: debian-12/os: ubuntu-22.04/" "$home/hello-cuda.new/packages.yml"
rm "$home/hello-cuda.new/packages.yml.bak"
for kept in .kiln dist; do
  if [ -e "$home/hello-cuda/$kept" ]; then mv "$home/hello-cuda/$kept" "$home/hello-cuda.new/"; fi
done
rm -rf "$home/hello-cuda"
mv "$home/hello-cuda.new" "$home/hello-cuda"

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port

cd "$home/hello-cuda"
step "$kiln" plan -q
step "$kiln" build
step "$kiln" audit dist/*.whl
step "$kiln" index generate --wheels-dir dist --output-dir "$home/index"

"$kiln" serve --dir "$home/index" --addr "127.0.0.1:$port" --read-only >"$home/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 50); do
  if "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "$url/simple/" 2>/dev/null; then break; fi
  kill -0 $server 2>/dev/null || { cat "$home/serve.log" >&2; exit 1; }
  sleep 0.2
done

rm -rf "$home/venv"
"$python" -m venv "$home/venv"
step "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check --index-url "$url/cu130/simple/" hello-cuda
step "$home/venv/bin/python" -m hello_cuda
printf '\nThe index is in .cache/quickstart/index. To look at it and install from it:\n\n  bin/kiln serve --dir .cache/quickstart/index --addr 127.0.0.1:8080\n  pip install --index-url http://127.0.0.1:8080/cu130/simple/ hello-cuda\n' >&2
