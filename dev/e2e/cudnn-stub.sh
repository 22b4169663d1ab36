#!/usr/bin/env bash
# Writes FOLDER/libcudnn.so.9, which has every cuDNN symbol that a LIBRARY wants and no function behind any of them, so
# that a CUDA build of torch can be imported, and extensions built for it, without the vendor's library.
# Calls into it answer "not initialized".
#   dev/e2e/cudnn-stub.sh FOLDER LIBRARY...
set -euo pipefail
folder=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# nm prints "U name@version"; a version other than the library's own name would need a second node below.
nm -D --undefined-only "$@" | sed -n 's/^ *U \(cudnn[A-Za-z0-9_]*\)\(@.*\)\{0,1\}$/\1/p' | sort -u >"$work/symbols"
[ -s "$work/symbols" ] || { echo "cudnn-stub: nothing wants a cuDNN symbol: $*" >&2; exit 1; }
while read -r symbol; do
  case $symbol in
    cudnnGetErrorString) echo "const char *$symbol(int status) { (void)status; return \"cuDNN is not there, only its symbols\"; }" ;;
    cudnnGetVersion) echo "unsigned long $symbol(void) { return 90000; }" ;;
    *) echo "int $symbol(void) { return 1001; }" ;;
  esac
done <"$work/symbols" >"$work/stub.c"
printf 'libcudnn.so.9 { global: cudnn*; local: *; };\n' >"$work/stub.map"
"${CC:-cc}" -shared -fPIC -nostdlib -O1 -Wl,-soname,libcudnn.so.9 -Wl,--version-script="$work/stub.map" \
  -o "$folder/libcudnn.so.9" "$work/stub.c"
chmod 644 "$folder/libcudnn.so.9"
echo "cudnn-stub: $(wc -l <"$work/symbols") symbols in $folder/libcudnn.so.9"
