#!/usr/bin/env bash
# Makes the container images that the end-to-end tests build and test wheels in, from Debian packages alone:
#
#   dev/e2e/images.sh NAME...   make these images, or do nothing if they are there
#   dev/e2e/images.sh list      print the names
#   dev/e2e/images.sh clean     remove the images and the tarballs
#
# An image is called localhost/kiln-e2e/NAME. Its tarball is kept in .cache/images, the packages in
# .cache/images/debs, so that only the first run downloads. A changed recipe makes a new image.
# The mirror is the one apt uses on this machine, or KILN_DEBIAN_MIRROR where apt has none of Debian.
# Needs root, podman, mmdebstrap and zstd: dev/scripts/podman.sh installs them.
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=localhost/kiln-e2e
cache=$PWD/.cache/images
libs=/usr/lib/x86_64-linux-gnu

# Every devel image has a runtime image without compiler and toolkit: NAME says which.
names=(
  ci                                        # small: Python and g++, for the tests that run everywhere
  bookworm-cc                               # g++ without Python
  bookworm-cuda118 bookworm-runtime         # CUDA 11.8, Python 3.11
  trixie-cuda124 trixie-runtime             # CUDA 12.4, Python 3.13
  trixie-torch26 trixie-torch26-runtime     # the same with the CUDA build of torch 2.6
  trixie-hip trixie-hip-runtime             # hipcc 5.7
  sid-python314 sid-python314-runtime       # Python 3.14, no toolkit
  trixie-wine                               # Wine 10, and a compiler for Windows programs
)

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# recipe NAME: sets suite, packages (what mmdebstrap installs), torch (what is installed after the
# cuDNN replacement) and trim (what else is not unpacked).
recipe() {
  local python=(python3 python3-venv ca-certificates)
  local devel=("${python[@]}" python3-dev g++ ninja-build ccache git patch)
  suite=${1%%-*} torch=() trim=()
  case $1 in
    ci)
      suite=bookworm
      packages=("${python[@]}" python3-dev g++ ninja-build)
      trim=(
        path-exclude=/usr/bin/\*lto-dump\* path-exclude=/usr/lib/gcc/\*/lto1 path-exclude=/usr/lib/python3\*/config-\*/libpython\*.a
        "path-exclude=$libs/lib?san.so*" path-exclude=/usr/lib/gcc/\*/lib?san.a
      )
      ;;
    bookworm-cc) packages=(ca-certificates g++) ;;
    bookworm-cuda118)
      # nvcc 11.8 takes GCC up to 11.
      packages=("${devel[@]}" g++-11 nvidia-cuda-toolkit)
      ;;
    bookworm-runtime) packages=("${python[@]}" libcudart11.0) ;;
    trixie-cuda124) packages=("${devel[@]}" g++-13 nvidia-cuda-toolkit) ;;
    trixie-runtime) packages=("${python[@]}" libcudart12) ;;
    trixie-torch26)
      packages=("${devel[@]}" g++-13 nvidia-cuda-toolkit)
      torch=(python3-torch-cuda libtorch-cuda-dev pybind11-dev)
      ;;
    trixie-torch26-runtime)
      packages=("${python[@]}" libcudart12)
      torch=(python3-torch-cuda)
      ;;
    trixie-hip) packages=("${devel[@]}" hipcc) ;;
    trixie-hip-runtime) packages=("${python[@]}" libamdhip64-5) ;;
    sid-python314) packages=("${devel[@]}") ;;
    sid-python314-runtime) packages=("${python[@]}") ;;
    trixie-wine) packages=(wine wine64 ca-certificates gcc-mingw-w64-ucrt64 g++-mingw-w64-ucrt64) ;;
    *) die "no image is called $1; there are: ${names[*]}" ;;
  esac
}

# What is never unpacked: documentation, and the static CUDA libraries (2.5 GB), of which nvcc links only the runtime.
excludes=(
  path-exclude=/usr/share/doc/\* path-exclude=/usr/share/man/\* path-exclude=/usr/share/info/\*
  path-exclude=/usr/share/locale/\* path-include=/usr/share/locale/locale.alias
  "path-exclude=$libs/*_static*.a" "path-include=$libs/libcudart_static.a"
  path-exclude=/usr/lib/libtorch-test/\*
)

# digest NAME: of everything that decides what is in the image, but for the versions in the archive.
digest() {
  recipe "$1"
  printf '%s\n' "$suite" "${packages[@]}" -- "${torch[@]}" -- "${excludes[@]}" "${trim[@]}" |
    if [ ${#torch[@]} -gt 0 ]; then cat - dev/e2e/cudnn-stub.sh; else cat; fi | sha256sum | cut -c1-12
}

mirror() {
  local uri=${KILN_DEBIAN_MIRROR:-}
  if [ -z "$uri" ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2016 # the fields are apt's
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 'Created-By: Packages' | sort -u | head -n 1)
  fi
  [ -n "$uri" ] || die "apt on this machine has no Debian archive: set KILN_DEBIAN_MIRROR to the URL of one"
  printf '%s\n' "$uri"
}

# empty_package FILE: a package that stands for nvidia-cudnn, which would download from its vendor.
empty_package() {
  local tree
  tree=$(mktemp -d)
  mkdir "$tree/DEBIAN"
  cat >"$tree/DEBIAN/control" <<'CONTROL'
Package: nvidia-cudnn
Version: 9.99~kiln
Architecture: all
Maintainer: kiln <kiln@localhost>
Provides: libcudnn.so, libcudnn.so.9
Description: nothing, in place of the package that downloads cuDNN
CONTROL
  dpkg-deb --root-owner-group -Zgzip --build "$tree" "$1" >/dev/null
  rm -r "$tree"
}

# discard FOLDER: with care, as mmdebstrap leaves /proc mounted in it when it is interrupted.
discard() {
  find "$1" -mindepth 2 -maxdepth 2 \( -name proc -o -name sys \) -exec mountpoint -q {} \; -exec umount --lazy {} \; 2>/dev/null || true
  rm -rf --one-file-system "$1"
}

# make_tarball NAME FILE
make_tarball() {
  local name=$1 file=$2 work args=() option
  recipe "$name"
  work=$(mktemp -d "$cache/work.XXXXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "discard '$work'" EXIT
  mkdir -p "$cache/debs/$suite"
  for option in "${excludes[@]}" "${trim[@]}"; do
    args+=(--dpkgopt="$option")
  done
  # Packages are linked in from the cache and back: mmdebstrap's folder is on the same file system.
  cat >"$work/debs-in" <<HOOK
#!/bin/sh
mkdir -p "\$1/var/cache/apt/archives/partial"
find '$cache/debs/$suite' -name '*.deb' -exec cp -lf -t "\$1/var/cache/apt/archives" {} +
HOOK
  cat >"$work/debs-out" <<HOOK
#!/bin/sh
find "\$1/var/cache/apt/archives" -maxdepth 1 -name '*.deb' -exec cp -lfu -t '$cache/debs/$suite' {} +
HOOK
  chmod +x "$work"/debs-*
  if [ ${#torch[@]} -gt 0 ]; then
    empty_package "$work/nvidia-cudnn.deb"
    cat >"$work/torch" <<HOOK
#!/bin/sh
set -e
cp '$work/nvidia-cudnn.deb' "\$1/nvidia-cudnn.deb"
chroot "\$1" dpkg -i /nvidia-cudnn.deb
rm "\$1/nvidia-cudnn.deb"
chroot "\$1" env DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends install ${torch[*]}
'$PWD/dev/e2e/cudnn-stub.sh' "\$1$libs" "\$1$libs"/libtorch_*.so.*
HOOK
    chmod +x "$work/torch"
    args+=(--customize-hook="$work/torch")
  fi
  # A mirror may lag behind: how fresh its lists are matters less than whose signature they carry.
  TMPDIR=$work mmdebstrap --mode=root --format=tar --variant=minbase \
    --components=main,contrib,non-free,non-free-firmware \
    --skip=download/empty --skip=essential/unlink \
    --dpkgopt=force-unsafe-io "${args[@]}" \
    --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Keep-Downloaded-Packages "true"' \
    --setup-hook="$work/debs-in" \
    --include="$(IFS=, && echo "${packages[*]}")" \
    --customize-hook="$work/debs-out" \
    "$suite" "$work/rootfs.tar" "$(mirror)" >"$cache/$name.log" 2>&1 ||
    { tail -n 20 "$cache/$name.log" >&2; die "$name: mmdebstrap stopped; its whole output is in $cache/$name.log"; }
  zstd -q -1 -T0 --rm "$work/rootfs.tar" -o "$work/rootfs.tar.zst"
  mv "$work/rootfs.tar.zst" "$file"
  discard "$work"
  trap - EXIT
}

ensure() {
  local name=$1 recipe_digest file start=$SECONDS old replaced
  recipe_digest=$(digest "$name")
  if [ "$(podman image inspect --format '{{index .Labels "kiln.recipe"}}' "$prefix/$name" 2>/dev/null)" = "$recipe_digest" ]; then
    say "$name is there"
    return
  fi
  mkdir -p "$cache"
  file=$cache/$name-$recipe_digest.tar.zst
  if [ ! -e "$file" ]; then
    say "$name: making $file"
    make_tarball "$name" "$file"
    for old in "$cache/$name"-????????????.tar.zst; do
      [ "$old" = "$file" ] || rm -f "$old"
    done
  fi
  replaced=$(podman image inspect --format '{{.Id}}' "$prefix/$name" 2>/dev/null || true)
  zstd -q -d -c "$file" | podman import -q \
    --change "LABEL kiln.recipe=$recipe_digest" --change 'ENV LANG=C.UTF-8' \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'CMD ["/bin/bash"]' \
    - "$prefix/$name" >/dev/null
  if [ -n "$replaced" ] && [ "$replaced" != "$(podman image inspect --format '{{.Id}}' "$prefix/$name")" ]; then
    podman image rm "$replaced" >/dev/null || true # a container may still use it
  fi
  say "$name: $(podman image inspect --format '{{.Size}}' "$prefix/$name" | numfmt --to=si)B, tarball $(stat -c %s "$file" | numfmt --to=si)B, $((SECONDS - start)) s"
}

case ${1:-} in
  '' | -h | --help)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"
    exit
    ;;
  list)
    printf '%s\n' "${names[@]}"
    exit
    ;;
  clean)
    for name in "${names[@]}"; do
      podman image rm -f "$prefix/$name" >/dev/null 2>&1 || true
    done
    rm -rf "$cache"
    exit
    ;;
esac

dev/scripts/podman.sh
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
for name in "$@"; do
  recipe "$name"
done
for name in "$@"; do
  ensure "$name"
done
