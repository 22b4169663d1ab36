#!/usr/bin/env bash
# Installs podman and what makes images from Debian packages, where they are absent: podman with a
# runtime, mmdebstrap and the archive's keys. Does nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'podman: %s\n' "$*" >&2; }

. dev/scripts/apt.sh

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
