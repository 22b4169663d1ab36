#!/bin/sh
# Prints an interpreter of a Python such as 3.13 that has venv and its headers: one on PATH or of
# pyenv, else one that uv fetches into .cache/pythons (KILN_UV; UV_PYTHON_INSTALL_MIRROR or
# UV_PYTHON_DOWNLOADS_JSON_URL where GitHub cannot be reached).
set -eu
version=$1
cd "$(dirname "$0")/../.."

usable() {
  [ -x "$1" ] && "$1" - "$version" >/dev/null 2>&1 <<'PY'
import ensurepip, os, sys, sysconfig, venv
sys.exit(not ("%d.%d" % sys.version_info[:2] == sys.argv[1] and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
PY
}

look() {
  for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python3 "$PWD/.cache/pythons/cpython-$version".*/bin/python3; do
    if usable "$candidate"; then
      printf '%s\n' "$candidate"
      exit 0
    fi
  done
}

look
"${KILN_UV:-uv}" python install --quiet --no-bin --install-dir .cache/pythons "$version" >&2
look
printf 'python.sh: no usable Python %s: install it with its headers, or put it on PATH\n' "$version" >&2
exit 1
