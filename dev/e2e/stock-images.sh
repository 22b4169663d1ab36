#!/usr/bin/env bash
# Makes look-alikes of images that people have, under their names: the same folders, and the same lack of Python, git, ninja
# and ccache. No registry is asked.
#
#   docker.io/nvidia/cuda:13.0.2-devel-ubuntu22.04       Ubuntu 22.04 from its own archive; /usr/local/cuda-13.0 as NVIDIA
#                                                        lays it out, with the compiler that NVIDIA has on the package index
#   docker.io/nvidia/cuda:12.{1.0,4.0}-devel-ubuntu22.04 the same with Debian's CUDA 12.4, which calls itself 12.1 in the first
#   docker.io/nvidia/cuda:12.{8.1,9.1}-devel-ubuntu22.04 the same with the compiler of 13.0, which calls itself 12.8 or 12.9,
#                                                        and the runtime library of 12.8
#   docker.io/nvidia/cuda:13.0.2-devel-{rockylinux8,ubi8} Ubuntu 18.04 (glibc 2.27, GCC 8; no packages of Red Hat are in reach)
#                                                        with the release file of the other, without apt and dpkg
#   quay.io/pypa/manylinux_2_28_x86_64                   Debian 11 (glibc 2.31; 2.28 is not to be had), /opt/python/cp311-cp311,
#                                                        no toolkit
#   docker.io/pytorch/manylinux2_28-builder:cuda13.0     the same, with /usr/local/cuda-13.0
#   docker.io/library/debian:11-slim                     Debian 11 without a compiler
#   docker.io/library/cuda:12.4-devel-debian13           trixie-cuda124 and trixie-runtime of images.sh, without their Python;
#                                                        Debian's toolkit in /usr
#
# and the -runtime twin of each -devel.
#
#   dev/e2e/stock-images.sh            make what make e2e-stock needs and is missing
#   dev/e2e/stock-images.sh workflow   make what make e2e-workflow needs: the images of CUDA 12, more versions of torch
#   dev/e2e/stock-images.sh pythons    make the Pythons alone
#   dev/e2e/stock-images.sh clean      remove them
#
# Beside them, in .cache/images/stock: pythons/downloads.json, a list for uv of relocatable CPythons from Maven Central
# (org.bytedeco:cpython), which stand in for python-build-standalone; torch/, torch from the package index with wheels that
# stand in for NVIDIA's libraries and triton: they have torch's symbols and nothing behind them, so that torch can be
# imported where extensions are built and tested. Needs root, podman, mmdebstrap and the network.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=$PWD/.cache/images/stock
python=${KILN_PYTHON:-$PWD/.cache/venv/bin/python}
ubuntu=${KILN_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
maven=https://repo1.maven.org/maven2/org/bytedeco/cpython
# Version and Python. Those of the package index are for CUDA 12.1 (2.2.2, 2.3.1), 12.4 (2.6.0), 12.8 (2.9.0) and 13.2 (2.15.0).
torches=(2.6.0:3.10 2.6.0:3.12 2.6.0:3.13)
[ "${1:-}" != workflow ] || torches+=(2.2.2:3.10 2.3.1:3.11 2.9.0:3.12 2.9.0:3.13 2.15.0:3.12 2.15.0:3.13)
pythons=(3.10.8-1.5.8 3.11.3-1.5.9 3.12.1-1.5.10 3.13.5-1.5.12)
nvidia=docker.io/nvidia/cuda
manylinux=quay.io/pypa/manylinux_2_28_x86_64:latest
names=("$manylinux" docker.io/library/debian:11-slim docker.io/pytorch/manylinux2_28-builder:cuda13.0)
for kind in devel runtime; do
  for version in 12.1.0 12.4.0 12.8.1 12.9.1 13.0.2; do names+=("$nvidia:$version-$kind-ubuntu22.04"); done
  names+=("$nvidia:13.0.2-$kind-rockylinux8" "$nvidia:13.0.2-$kind-ubi8" "docker.io/library/cuda:12.4-$kind-debian13")
done

say() { printf 'stock-images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if [ "${1:-}" = clean ]; then
  for name in "${names[@]}"; do podman image rm -f "$name" >/dev/null 2>&1 || true; done
  rm -rf "$cache"
  exit
fi

dev/scripts/podman.sh
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
# recipe FUNCTION...: what is made by changed functions is made again, the rest stays.
recipe() { declare -f "$@" | sha256sum | cut -c1-12; }
# made RECIPE IMAGE...
made() {
  local recipe=$1 name
  shift
  for name; do [ "$(podman image inspect --format '{{index .Labels "kiln.stock"}}' "$name" 2>/dev/null)" = "$recipe" ] || return 1; done
}
pip() { "$python" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

# import_tree RECIPE FOLDER NAME [CHANGE...]
import_tree() {
  local tree=$2 name=$3 change args=(--change "LABEL kiln.stock=$1")
  shift 3
  for change in "$@"; do args+=(--change "$change"); done
  tar -C "$tree" -c . | podman import -q "${args[@]}" - "$name" >/dev/null
  say "$name: $(podman image inspect --format '{{.Size}}' "$name" | numfmt --to=si)B"
}

# derive BASE NAME FUNCTION [ARGUMENT...]: the image with its tree changed by the function, which gets the tree first.
derive() {
  local base=$1 name=$2 container tree recipe version=${2##*:}
  shift 2
  recipe=$( (recipe "$1" nvcc_says runtime12; echo "$@"; podman image inspect --format '{{.Id}}' "$base") | sha256sum | cut -c1-12)
  made "$recipe" "$name" && return
  container=$(podman create "$base" true)
  tree=$(podman mount "$container")
  "$1" "$tree" "${@:2}"
  podman unmount "$container" >/dev/null
  podman commit -q --change "LABEL kiln.stock=$recipe" --change "ENV CUDA_VERSION=${version%%-*}" "$container" "$name" >/dev/null
  podman rm "$container" >/dev/null
  say "$name"
}

# system SUITE MIRROR KEYRING FOLDER PACKAGE,...
system() {
  local options=() option unused=(doc man info locale)
  [ "$1" != bionic ] || unused=(doc info locale) # its dash wants to move manuals
  for option in "${unused[@]}"; do options+=(--dpkgopt="path-exclude=/usr/share/$option/*"); done
  mmdebstrap --mode=root --variant=minbase --format=directory --components=main,universe --dpkgopt=force-unsafe-io "${options[@]}" --keyring="$3" \
    --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' --include="$5" "$1" "$4" "$2" >"$cache/$1.log" 2>&1 ||
    { tail -n 20 "$cache/$1.log" >&2; die "$1: mmdebstrap stopped"; }
}

# pythons for uv: archives with bin, lib and include below python/, and the list of them.
make_pythons() {
  local spec full minor dir jar recipe
  recipe=$(recipe make_pythons)
  [ -e "$cache/pythons/.made-$recipe" ] || rm -rf "$cache/pythons"
  mkdir -p "$cache/pythons"
  for spec in "${pythons[@]}"; do
    full=${spec%-*} minor=${full%.*}
    [ -e "$cache/pythons/cpython-$full.tar.gz" ] && continue
    dir=$(mktemp -d "$cache/work.XXXXXX") jar=cpython-$spec-linux-x86_64.jar
    curl --fail --silent --show-error --location -o "$dir/$jar" "$maven/$spec/$jar"
    "$python" - "$dir" "$dir/$jar" "$minor" <<'PACK'
import os, re, shutil, sys, zipfile
work, jar, minor = sys.argv[1:]
root, inside = os.path.join(work, "python"), "org/bytedeco/cpython/linux-x86_64/"
with zipfile.ZipFile(jar) as z:
    for name in z.namelist():
        rel = name[len(inside):]
        if not name.startswith(inside) or name.endswith("/") or "/test/" in rel or "libjni" in rel:
            continue
        if "/" not in rel:
            if ".so" not in rel:
                continue
            rel = "lib/" + rel  # the interpreter looks for libpython there as well
        to = os.path.join(root, rel)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with z.open(name) as src, open(to, "wb") as dst:
            shutil.copyfileobj(src, dst)
        if rel.startswith("bin/") or ".so" in rel:
            os.chmod(to, 0o755)
for name in ("python3", "python"):
    link = os.path.join(root, "bin", name)
    if os.path.exists(link):
        os.remove(link)
    os.symlink("python" + minor, link)
# Modules look for libffi beside themselves; other standalone Pythons have it inside.
dynload = os.path.join(root, "lib", "python" + minor, "lib-dynload")
for name in os.listdir(os.path.join(root, "lib")):
    if name.startswith("libffi.so."):
        os.symlink("../../" + name, os.path.join(dynload, name))
# The configuration of the build would put its run paths into every extension.
lib = os.path.join(root, "lib", "python" + minor)
for name in os.listdir(lib):
    if name.startswith("_sysconfigdata"):
        path = os.path.join(lib, name)
        text = open(path).read()
        open(path, "w").write(re.sub(r"-Wl,-rpath,\S*?(?=['\" ]|$)", "", text))
PACK
    tar -C "$dir" -czf "$cache/pythons/cpython-$full.tar.gz.part" python
    mv "$cache/pythons/cpython-$full.tar.gz.part" "$cache/pythons/cpython-$full.tar.gz"
    rm -rf "$dir"
    say "Python $full"
  done
  "$python" - "$cache/pythons" <<'LIST'
import hashlib, json, os, sys
folder, out = sys.argv[1], {}
for name in sorted(os.listdir(folder)):
    if not name.endswith(".tar.gz"):
        continue
    path = os.path.join(folder, name)
    major, minor, patch = map(int, name[len("cpython-"):-len(".tar.gz")].split("."))
    out["cpython-%d.%d.%d-linux-x86_64-gnu" % (major, minor, patch)] = {
        "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu", "major": major, "minor": minor,
        "patch": patch, "prerelease": "", "url": "file://" + path, "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
        "variant": None, "build": "1",
    }
json.dump(out, open(os.path.join(folder, "downloads.json"), "w"), indent=1)
LIST
  touch "$cache/pythons/.made-$recipe"
}

# torch as it is on the package index, and wheels in place of what it requires of NVIDIA's.
make_torch() {
  local dir=$cache/torch wanted made
  made=$(cat <(recipe make_torch; echo "${torches[@]}") dev/e2e/torch-standins.py | sha256sum | cut -c1-12)
  [ -e "$dir/.made-$made" ] && return
  mkdir -p "$dir"
  for wanted in "${torches[@]}"; do
    pip download --no-deps --only-binary :all: --python-version "${wanted#*:}" --platform manylinux_2_28_x86_64 --platform manylinux1_x86_64 --dest "$dir" "torch==${wanted%:*}"
  done
  rm -f "$dir"/*-99-*.whl
  "$python" dev/e2e/torch-standins.py "$dir" "$dir"
  touch "$dir/.made-$made"
}

# ubuntu_keys FOLDER: the path of the keys of Ubuntu's archive, fetched to the folder where the machine lacks them.
ubuntu_keys() {
  local keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -e "$keys" ]; then
    curl --fail --silent --show-error --location -o "$1/keys.deb" "$ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
    echo "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f  $1/keys.deb" | sha256sum --check --quiet
    dpkg -x "$1/keys.deb" "$1/keys"
    keys=$1/keys$keys
  fi
  echo "$keys"
}

make_ubuntu() {
  local work keys recipe
  recipe=$(recipe make_ubuntu)
  made "$recipe" "$nvidia:13.0.2-devel-ubuntu22.04" "$nvidia:13.0.2-runtime-ubuntu22.04" && return
  work=$(mktemp -d "$cache/work.XXXXXX")
  keys=$(ubuntu_keys "$work")
  system jammy "$ubuntu" "$keys" "$work/devel" ca-certificates,build-essential
  system jammy "$ubuntu" "$keys" "$work/runtime" ca-certificates,libstdc++6,libgomp1
  pip download --no-deps --dest "$work/wheels" nvidia-cuda-nvcc==13.0.* nvidia-cuda-crt==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*
  local home file
  for file in "$work"/wheels/*.whl; do "$python" -m zipfile -e "$file" "$work/toolkit"; done
  for home in devel runtime; do
    mkdir -p "$work/$home/usr/local/cuda-13.0/targets/x86_64-linux"
    ln -s cuda-13.0 "$work/$home/usr/local/cuda"
    ln -s targets/x86_64-linux/lib "$work/$home/usr/local/cuda-13.0/lib64"
  done
  # As NVIDIA's packages do: headers and libraries below targets, with links to them.
  mv "$work/toolkit/nvidia/cu13/lib" "$work/toolkit/nvidia/cu13/include" "$work/devel/usr/local/cuda-13.0/targets/x86_64-linux/"
  cp -a "$work/toolkit/nvidia/cu13/." "$work/devel/usr/local/cuda-13.0/"
  ln -s targets/x86_64-linux/include "$work/devel/usr/local/cuda-13.0/include"
  ln -s lib64 "$work/devel/usr/local/cuda-13.0/lib"
  chmod -R a+rX "$work/devel/usr/local/cuda-13.0"
  chmod a+x "$work"/devel/usr/local/cuda-13.0/bin/* "$work"/devel/usr/local/cuda-13.0/nvvm/bin/*
  ln -s libcudart.so.13 "$work/devel/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so"
  mkdir "$work/runtime/usr/local/cuda-13.0/targets/x86_64-linux/lib"
  cp -a "$work"/devel/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.* "$work/runtime/usr/local/cuda-13.0/targets/x86_64-linux/lib/"
  for home in devel runtime; do
    echo /usr/local/cuda/targets/x86_64-linux/lib >"$work/$home/etc/ld.so.conf.d/000_cuda.conf"
    chroot "$work/$home" ldconfig
    import_tree "$recipe" "$work/$home" "$nvidia:13.0.2-$home-ubuntu22.04" 'ENV CUDA_VERSION=13.0.2' \
      'ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      'ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64' 'ENV NVIDIA_VISIBLE_DEVICES=all' 'ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility' \
      'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]'
  done
  rm -rf "$work"
}

make_manylinux() {
  local work recipe keys=/usr/share/keyrings/debian-archive-keyring.gpg
  recipe=$(recipe make_manylinux make_pythons)
  made "$recipe" "$manylinux" docker.io/library/debian:11-slim && return
  work=$(mktemp -d "$cache/work.XXXXXX")
  system bullseye http://deb.debian.org/debian "$keys" "$work/devel" ca-certificates,g++,make,patch
  system bullseye http://deb.debian.org/debian "$keys" "$work/runtime" ca-certificates,libstdc++6,libgomp1
  mkdir -p "$work/devel/opt/_internal" "$work/devel/opt/python"
  tar -C "$work/devel/opt/_internal" -xzf "$cache/pythons/cpython-3.11.3.tar.gz"
  mv "$work/devel/opt/_internal/python" "$work/devel/opt/_internal/cpython-3.11.3"
  ln -s /opt/_internal/cpython-3.11.3 "$work/devel/opt/python/cp311-cp311"
  import_tree "$recipe" "$work/devel" "$manylinux" 'ENV AUDITWHEEL_PLAT=manylinux_2_28_x86_64' 'ENV LC_ALL=en_US.UTF-8' \
    'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  import_tree "$recipe" "$work/runtime" docker.io/library/debian:11-slim 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  rm -rf "$work"
}

make_rocky() {
  local work keys recipe home from
  recipe=$(recipe make_rocky)
  made "$recipe" "$nvidia:13.0.2-devel-rockylinux8" "$nvidia:13.0.2-runtime-rockylinux8" && return
  work=$(mktemp -d "$cache/work.XXXXXX")
  keys=$(ubuntu_keys "$work")
  system bionic "$ubuntu" "$keys" "$work/devel" ca-certificates,g++-8,make,libc6-dev
  system bionic "$ubuntu" "$keys" "$work/runtime" ca-certificates,libstdc++6,libgomp1
  for home in gcc g++ cpp; do ln -sf "$home-8" "$work/devel/usr/bin/$home"; done
  ln -sf g++ "$work/devel/usr/bin/c++"
  ln -sf gcc "$work/devel/usr/bin/cc"
  for home in devel runtime; do
    from=$(podman image mount "$nvidia:13.0.2-$home-ubuntu22.04")
    cp -a "$from"/usr/local/cuda* "$work/$home/usr/local/"
    podman image unmount "$nvidia:13.0.2-$home-ubuntu22.04" >/dev/null
    echo /usr/local/cuda/targets/x86_64-linux/lib >"$work/$home/etc/ld.so.conf.d/000_cuda.conf"
    chroot "$work/$home" ldconfig
    rm -rf "$work/$home"/usr/bin/{apt,dpkg}* "$work/$home"/var/lib/{apt,dpkg} "$work/$home"/etc/{apt,dpkg,debian_version,lsb-release}
    release "$work/$home" rocky "Rocky Linux"
    import_tree "$recipe" "$work/$home" "$nvidia:13.0.2-$home-rockylinux8" 'ENV CUDA_VERSION=13.0.2' \
      'ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' 'ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64'
  done
  rm -rf "$work"
}

# release TREE ID NAME
release() {
  rm -f "$1/etc/os-release"
  printf '%s\n' "NAME=\"$3\"" 'VERSION="8.10"' "ID=\"$2\"" 'ID_LIKE="rhel centos fedora"' 'VERSION_ID="8.10"' 'PLATFORM_ID="platform:el8"' "PRETTY_NAME=\"$3 8.10\"" >"$1/etc/os-release"
}

# with_cuda TREE: the toolkit of nvidia/cuda in another image.
with_cuda() {
  local from
  from=$(podman image mount "$nvidia:13.0.2-devel-ubuntu22.04")
  cp -a "$from"/usr/local/cuda* "$1/usr/local/"
  podman image unmount "$nvidia:13.0.2-devel-ubuntu22.04" >/dev/null
}

# nvcc_says TREE VERSION: the compiler calls itself by another version.
nvcc_says() {
  local bin=$1/usr/local/cuda/bin
  [ -e "$bin/nvcc.real" ] || mv "$bin/nvcc" "$bin/nvcc.real"
  cat >"$bin/nvcc" <<SAYS
#!/bin/sh
case "\$*" in
  --version | -V) printf '%s\n' 'nvcc: NVIDIA (R) Cuda compiler driver' 'Cuda compilation tools, release ${2%.*}, V$2' ;;
  *) exec "\$(dirname "\$0")/nvcc.real" "\$@" ;;
esac
SAYS
  chmod +x "$bin/nvcc"
}

# debian_cuda TREE VERSION: Debian's CUDA 12.4 in the layout of NVIDIA.
debian_cuda() {
  local image=localhost/kiln-e2e/trixie-cuda124 home=$1/usr/local/cuda-12.4 profile from list file target
  profile=$(cat "$1/usr/local/cuda/bin/nvcc.profile")
  from=$(podman image mount "$image")
  rm -rf "$1"/usr/local/cuda*
  target=$home/targets/x86_64-linux
  mkdir -p "$home/bin" "$home/nvvm/bin" "$target/lib/stubs" "$target/include"
  ln -s cuda-12.4 "$1/usr/local/cuda"
  ln -s targets/x86_64-linux/include "$home/include"
  ln -s targets/x86_64-linux/lib "$home/lib64"
  cp -a "$from"/usr/bin/{bin2c,cudafe++,fatbinary,nvlink,ptxas} "$from"/usr/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$home/bin/"
  echo "$profile" | grep -v cccl >"$home/bin/nvcc.profile"
  cp -a "$from/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$home/nvvm/bin/"
  cp -a "$from/usr/lib/nvidia-cuda-toolkit/libdevice" "$home/nvvm/"
  for list in nvidia-cuda-dev:amd64 libcu++-dev libcub-dev libthrust-dev; do
    while read -r file; do
      [ -f "$from$file" ] || continue
      mkdir -p "$target/include/$(dirname "${file#/usr/include/}")"
      cp -a "$from$file" "$target/include/${file#/usr/include/}"
    done < <(grep ^/usr/include/ "$from/var/lib/dpkg/info/$list.list")
  done
  cp -a "$from"/usr/lib/x86_64-linux-gnu/libcudart* "$from"/usr/lib/x86_64-linux-gnu/libcudadevrt.a "$target/lib/"
  podman image unmount "$image" >/dev/null
  chroot "$1" ldconfig
  nvcc_says "$1" "$2"
}

# newer_cuda TREE VERSION: the compiler of 13.0 with the runtime library of 12.8. It leaves out GPUs that 13.0 has no code for.
newer_cuda() {
  local bin=$1/usr/local/cuda/bin
  runtime12 "$1"
  ln -sf libcudart.so.12 "$1/usr/local/cuda/targets/x86_64-linux/lib/libcudart.so"
  ln -s cuda-13.0 "$1/usr/local/cuda-${2%.*}"
  nvcc_says "$1" "$2"
  mv "$bin/nvcc.real" "$bin/nvcc.13"
  cat >"$bin/nvcc.real" <<'FILTER'
#!/bin/sh
for a; do
  shift
  case "$a" in *compute_5?* | *compute_6?* | *compute_7[02]*) ;; *) set -- "$@" "$a" ;; esac
done
exec "$(dirname "$0")/nvcc.13" "$@"
FILTER
  chmod +x "$bin/nvcc.real"
}

# runtime12 TREE: the runtime library of 12.8.
runtime12() {
  pip download --no-deps --dest "$cache/cudart" nvidia-cuda-runtime-cu12==12.8.90
  rm -f "$1"/usr/local/cuda/targets/x86_64-linux/lib/libcudart*
  "$python" -m zipfile -e "$cache"/cudart/*.whl "$cache/cudart/files"
  cp "$cache/cudart/files/nvidia/cuda_runtime/lib/libcudart.so.12" "$1/usr/local/cuda/targets/x86_64-linux/lib/"
  rm -rf "$cache/cudart"
  chroot "$1" ldconfig
}

# bare TREE: without Python, git, ninja and ccache.
bare() {
  rm -rf "$1"/usr/bin/python3* "$1"/usr/lib/python3 "$1"/usr/lib/python3.* "$1"/usr/share/python-wheels "$1"/usr/bin/git "$1"/usr/lib/git-core \
    "$1"/usr/bin/ninja "$1"/usr/bin/ccache "$1"/usr/include/python3*
}

make_pythons
[ "${1:-}" != pythons ] || exit 0
make_ubuntu
make_manylinux
make_torch
dev/e2e/images.sh trixie-cuda124 trixie-runtime
if [ "${1:-}" = workflow ]; then
  for version in 12.1.0 12.4.0; do derive "$nvidia:13.0.2-devel-ubuntu22.04" "$nvidia:$version-devel-ubuntu22.04" debian_cuda "$version"; done
  for version in 12.8.1 12.9.1; do derive "$nvidia:13.0.2-devel-ubuntu22.04" "$nvidia:$version-devel-ubuntu22.04" newer_cuda "$version"; done
  for version in 12.1.0 12.4.0 12.8.1 12.9.1; do derive "$nvidia:13.0.2-runtime-ubuntu22.04" "$nvidia:$version-runtime-ubuntu22.04" runtime12; done
else
  derive localhost/kiln-e2e/trixie-cuda124 docker.io/library/cuda:12.4-devel-debian13 bare
  derive localhost/kiln-e2e/trixie-runtime docker.io/library/cuda:12.4-runtime-debian13 bare
  make_rocky
  for kind in devel runtime; do derive "$nvidia:13.0.2-$kind-rockylinux8" "$nvidia:13.0.2-$kind-ubi8" release rhel "Red Hat Enterprise Linux"; done
  derive "$manylinux" docker.io/pytorch/manylinux2_28-builder:cuda13.0 with_cuda
fi
