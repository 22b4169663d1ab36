#!/usr/bin/env bash
# Makes .cache/venv-quant with what kiln's quantized products are compared with: numpy with OpenBLAS, and ggml of llama.cpp,
# built for this processor from the source that llama-cpp-python has on PyPI. Needs what dev/scripts/deps.sh installs. Does
# nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../../.."

llama=llama-cpp-python==0.3.36
requirements=dev/bench/quant/requirements.txt
base=.cache/venv/bin/python
venv=.cache/venv-quant
stamp=$venv/.made-from

say() { printf 'peers: %s\n' "$*" >&2; }

if command -v flock >/dev/null; then
  exec 9>.cache/quant-peers.lock
  flock 9
fi

# Made again when the interpreter, the packages, this script or the processor changes.
made_from=$("$base" -c 'import sys; print(sys.base_prefix, sys.version)'; cat "$requirements" dev/bench/quant/peers.sh
  sed -n '/^flags/{p;q}' /proc/cpuinfo 2>/dev/null || true)
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
  exit 0
fi
say "making $venv (numpy and ggml of $llama, a few minutes)"
rm -rf "$venv"
"$base" -m venv "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input)
"${pip[@]}" install -r "$requirements"
mkdir "$venv/llama"
"${pip[@]}" download --no-deps --no-binary :all: --dest "$venv/llama" "$llama"
tar -xzf "$venv"/llama/llama_cpp_python-*.tar.gz -C "$venv/llama" --strip-components=1 --wildcards '*/vendor/llama.cpp/ggml/*'
touch "$venv/llama/vendor/llama.cpp/ggml/ggml.pc.in" # for pkg-config; the archive leaves it out
PATH=$PWD/$venv/bin:$PATH
# build FOLDER OPTION... builds ggml with the options and copies its libraries.
build() {
  cmake -G Ninja -S "$venv/llama/vendor/llama.cpp/ggml" -B "$venv/llama/$1" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF -DGGML_CCACHE=OFF "${@:2}" &&
    cmake --build "$venv/llama/$1" &&
    mkdir "$venv/$1" &&
    find "$venv/llama/$1" -name 'libggml*' -exec cp -P {} "$venv/$1/" \;
}
{
  build ggml -DGGML_NATIVE=ON &&
    case $(uname -m) in x86_64) # what a processor without AVX-512 and VNNI runs
      build ggml-avx2 -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_BMI2=ON -DGGML_FMA=ON -DGGML_F16C=ON ;;
    esac
} >"$venv/ggml.log" 2>&1 || {
  tail -n 20 "$venv/ggml.log" >&2
  say "ggml was not built; the whole output is in $venv/ggml.log"
  exit 1
}
rm -rf "$venv/llama"
printf '%s\n' "$made_from" >"$stamp"
