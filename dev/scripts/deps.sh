#!/usr/bin/env bash
# Installs what the tests need: Python with its headers, a C++ compiler, the packages of
# dev/python/requirements.txt in .cache/venv, and an old pip in .cache/venv-old-pip. In CI (CI=true)
# also Chromium, ccache, podman with a small image, and PyTorch with transformers: elsewhere the tests with them run where
# they are found.
# Does nothing if all of it is there.
#
#   dev/scripts/deps.sh          everything
#   dev/scripts/deps.sh python   Python and the compiler only; prints the interpreter
set -euo pipefail
cd "$(dirname "$0")/../.."

requirements=dev/python/requirements.txt
venv=.cache/venv
stamp=$venv/.made-from

say() { printf 'deps: %s\n' "$*" >&2; }

# usable PYTHON: new enough for the pinned packages, can make a venv with pip, has the headers for extensions.
usable() {
  command -v "$1" >/dev/null && "$1" - >/dev/null 2>&1 <<'PY'
import ensurepip, os, sys, sysconfig, venv
sys.exit(not (sys.version_info >= (3, 10) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
PY
}

find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if usable "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

have_cxx() { command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null; }

elsewhere="Python 3.10 or newer with venv, pip and its C headers, and a C++ compiler (c++ on PATH)"
. dev/scripts/apt.sh

mkdir -p .cache
# Two runs at once in one tree take turns, where there is flock.
if command -v flock >/dev/null; then
  exec 9>.cache/deps.lock
  flock 9
fi

missing=()
have_cxx || missing+=(g++)
find_python >/dev/null || missing+=(python3 python3-venv python3-dev)
if [ -n "${CI:-}" ] && [ "${1:-}" != python ]; then
  command -v chromium >/dev/null || missing+=(chromium)
  command -v ccache >/dev/null || missing+=(ccache)
  command -v npm >/dev/null || missing+=(nodejs npm)
fi
if [ ${#missing[@]} -gt 0 ]; then
  install "${missing[@]}"
fi
python=$(find_python) || {
  say "no usable Python, even after installing ${missing[*]}: it must be 3.10 or newer, with venv, pip and Python.h"
  exit 1
}

if [ "${1:-}" = python ]; then
  command -v "$python"
  exit
fi

# The venv is made again when the interpreter or the list of packages changes.
made_from=$("$python" -c 'import sys; print(sys.executable, sys.version)'; cat "$requirements")
if [ -n "${CI:-}" ]; then
  dev/scripts/podman.sh
  dev/e2e/images.sh ci
fi
with_torch() { if [ -n "${CI:-}" ]; then dev/scripts/torchvenv.sh transformers; fi; }
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$made_from" ]; then
  with_torch
  exit 0
fi
say "making $venv with $("$python" -c 'import sys; print(sys.executable)')"
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input install -r "$requirements"
# The oldest pip that people still meet, as a client of the index.
rm -rf "$venv-old-pip"
"$python" -m venv "$venv-old-pip"
"$venv-old-pip/bin/python" -m pip --quiet --disable-pip-version-check --no-input install pip==20.3.4
printf '%s\n' "$made_from" >"$stamp"
with_torch
