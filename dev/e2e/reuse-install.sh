#!/bin/sh
# Installs the extension of reuse.sh from the view of every torch, and runs it. Arguments: the folder
# of torch's wheels, the folder that has site/, and Pythons.
set -eu
wheels=$1 dir=$(realpath "$2")
shift 2
scripts=$(dirname "$(realpath "$0")")/../scripts
python3 -m http.server --bind 127.0.0.1 --directory "$dir/site" 18924 > "$dir/server.log" 2>&1 &
server=$!
trap 'kill $server' EXIT
curl --silent --show-error --retry 20 --retry-connrefused --output /dev/null http://127.0.0.1:18924/
for python in "$@"; do
    tag=cp$(echo "$python" | tr -d .)
    venv=$dir/venv-$python
    rm -rf "$venv"
    "$("$scripts/python.sh" "$python")" -m venv "$venv"
    for torch in 2.10.0 2.12.1 2.13.0; do
        "$venv/bin/pip" -q install --no-cache-dir "$wheels/torch-$torch-$tag-$tag-manylinux_2_28_x86_64.whl" numpy
        "$venv/bin/pip" -q uninstall -y ordinary
        "$venv/bin/pip" -q install --no-deps --no-cache-dir --index-url "http://127.0.0.1:18924/cpu/torch${torch%.*}/simple/" ordinary
        (cd / && "$venv/bin/python" -c 'import torch, ordinary, importlib.metadata as m; ordinary.check(); print(torch.__version__, m.version("ordinary"))')
    done
    rm -rf "$venv"
done
