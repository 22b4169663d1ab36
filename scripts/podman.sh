#!/usr/bin/env bash
# Installs podman and what makes images from Debian packages, where they are absent: podman with a
# runtime, mmdebstrap and the archive's keys. Does nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'podman: %s\n' "$*" >&2; }

# install PACKAGE...: with apt-get if that is possible without a question, else says what is missing.
install() {
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
  fi
  if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    say "missing, and not installable from here: $*"
    say "on Debian or Ubuntu: sudo apt-get install $*"
    exit 1
  fi
  say "apt-get install $*"
  if ! {
    "${as_root[@]}" apt-get -q update &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
  } >.cache/podman-apt.log 2>&1; then
    tail -n 20 .cache/podman-apt.log >&2
    say "apt-get did not install $*; its whole output is in .cache/podman-apt.log"
    exit 1
  fi
}

mkdir -p .cache
if command -v flock >/dev/null; then
  exec 9>.cache/podman.lock
  flock 9
fi

missing=()
command -v podman >/dev/null || missing+=(podman)
command -v runc >/dev/null || command -v crun >/dev/null || missing+=(runc)
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
command -v zstd >/dev/null || missing+=(zstd)
# The init that reaps what builds orphan; kiln does without where it is absent.
command -v catatonit >/dev/null || [ -e /usr/libexec/podman/catatonit ] || missing+=(catatonit)
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
if [ ${#missing[@]} -gt 0 ]; then
  install "${missing[@]}"
fi
