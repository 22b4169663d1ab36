#!/usr/bin/env bash
# Installs what make e2e-share needs beyond the images: ccache and Redis from Debian, and bazel-remote, built from its own module into
# .cache/tools. Does nothing if all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

bazel_remote=v2.6.1
say() { printf 'sharedeps: %s\n' "$*" >&2; }

missing=()
command -v ccache >/dev/null || missing+=(ccache)
command -v redis-server >/dev/null || missing+=(redis-server)
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
  fi
  say "apt-get install ${missing[*]}"
  "${as_root[@]}" apt-get -q update >/dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" >/dev/null
fi
if [ ! -x .cache/tools/bazel-remote ]; then
  say "building bazel-remote $bazel_remote"
  mkdir -p .cache/tools
  tools=$PWD/.cache/tools
  folder=$(go mod download -json "github.com/buchgr/bazel-remote/v2@$bazel_remote" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  (cd "$folder" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -o "$tools/bazel-remote" .)
fi
