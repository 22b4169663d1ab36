#!/bin/sh
# Builds an ordinary torch extension for two Pythons and three torch releases with reuse, publishes
# the wheels to an index, and installs them from the view of each torch. Arguments: kiln, the folder
# of the wheels of torch-slim.py, and a folder to work in.
set -eu
kiln=$1 wheels=$(realpath "$2") work=$3
here=$(dirname "$(realpath "$0")")
mkdir -p "$work"
cd "$work"
[ -e src ] || cp -r "$here/testdata/reuse/ordinary" src
ln -sfn "$wheels" torch
cat > packages.yml <<'YML'
packages:
  ordinary:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [setuptools==80.9.0, numpy, ninja]
    torch_source: {path: torch}
    local_version: "cpu-torch{torch}"
    reuse: {torch: tests}
    test: {expressions: ["ordinary.check()"]}
    audit: {torch-undeclared: off}
    matrix:
      - {torch: ["2.10.0", "2.12.1", "2.13.0"], python: ["3.12", "3.13"]}
YML
"$kiln" build --runner host --jobs 1 | tee summary.txt
grep -q '^6 rows: 4 compiled, 2 proven$' summary.txt
rm -rf site
"$kiln" index generate --wheels-dir dist --output-dir site
"$here/reuse-install.sh" "$wheels" . 3.12 3.13
