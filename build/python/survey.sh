# Prints the C library, which programs there are, and which of its arguments exist: names on PATH,
# and patterns of paths. Images have a shell, and little else.
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
for f in /lib/ld-musl-*.so.1; do if [ -z "$libc" ] && [ -e "$f" ]; then libc=musl; fi; done
if [ -z "$libc" ]; then libc=$(ldd --version 2>/dev/null | sed -n '1s/.* \([0-9.]*\)$/glibc \1/p'); fi
echo "libc $libc"
for name in ninja git ccache; do
  if command -v $name >/dev/null 2>&1; then echo "program $name"; fi
done
ccache --version 2>/dev/null | sed -n '1s/^ccache version/ccache/p'
for pattern in "$@"; do
  case $pattern in
    /*) for f in $pattern; do if [ -x "$f" ]; then echo "python $f"; fi; done ;;
    *) f=$(command -v "$pattern" 2>/dev/null) && echo "python $f" ;;
  esac
done
exit 0
