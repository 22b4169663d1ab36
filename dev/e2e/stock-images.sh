#!/usr/bin/env bash
# Makes look-alikes of images that people have, under their names: the same folders, and the same lack of Python, git, ninja
# and ccache. No registry is asked.
#
#   docker.io/nvidia/cuda:13.0.2-devel-ubuntu22.04     Ubuntu 22.04 from its own archive; /usr/local/cuda-13.0 as NVIDIA lays
#   docker.io/nvidia/cuda:13.0.2-runtime-ubuntu22.04   it out, with the compiler that NVIDIA has on the package index
#   quay.io/pypa/manylinux_2_28_x86_64                 Debian 11 (glibc 2.31; 2.28 is not to be had), /opt/python/cp311-cp311,
#   docker.io/library/debian:11-slim                   no toolkit
#   docker.io/library/cuda:12.4-devel-debian13         trixie-cuda124 and trixie-runtime of images.sh, without their Python;
#   docker.io/library/cuda:12.4-runtime-debian13       Debian's toolkit in /usr
#
#   dev/e2e/stock-images.sh         make what is missing
#   dev/e2e/stock-images.sh clean   remove them
#
# Beside them, in .cache/images/stock: pythons/downloads.json, a list for uv of relocatable CPythons from Maven Central
# (org.bytedeco:cpython), which stand in for python-build-standalone; torch/, torch 2.6.0 from the package index with wheels
# that stand in for NVIDIA's libraries and triton: they have torch's symbols and nothing behind them, so that torch can be
# imported where extensions are built and tested. Needs root, podman, mmdebstrap and the network.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=$PWD/.cache/images/stock
python=${KILN_PYTHON:-$PWD/.cache/venv/bin/python}
ubuntu=${KILN_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
maven=https://repo1.maven.org/maven2/org/bytedeco/cpython
torch=2.6.0
pythons=(3.10.8-1.5.8 3.11.3-1.5.9 3.12.1-1.5.10 3.13.5-1.5.12)
names=(
  docker.io/nvidia/cuda:13.0.2-devel-ubuntu22.04 docker.io/nvidia/cuda:13.0.2-runtime-ubuntu22.04
  quay.io/pypa/manylinux_2_28_x86_64:latest docker.io/library/debian:11-slim
  docker.io/library/cuda:12.4-devel-debian13 docker.io/library/cuda:12.4-runtime-debian13
)

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
digest=$(sha256sum "$0" | cut -c1-12)
made() { [ "$(podman image inspect --format '{{index .Labels "kiln.stock"}}' "$1" 2>/dev/null)" = "$digest" ]; }
pip() { "$python" -m pip --quiet --disable-pip-version-check --no-input "$@"; }

# import_tree FOLDER NAME [CHANGE...]
import_tree() {
  local tree=$1 name=$2 change args=(--change "LABEL kiln.stock=$digest")
  shift 2
  for change in "$@"; do args+=(--change "$change"); done
  tar -C "$tree" -c . | podman import -q "${args[@]}" - "$name" >/dev/null
  say "$name: $(podman image inspect --format '{{.Size}}' "$name" | numfmt --to=si)B"
}

# system SUITE MIRROR KEYRING FOLDER PACKAGE,...
system() {
  local options=()
  for option in doc man info locale; do options+=(--dpkgopt="path-exclude=/usr/share/$option/*"); done
  mmdebstrap --mode=root --variant=minbase --format=directory --components=main,universe --dpkgopt=force-unsafe-io "${options[@]}" --keyring="$3" \
    --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' --include="$5" "$1" "$4" "$2" >"$cache/$1.log" 2>&1 ||
    { tail -n 20 "$cache/$1.log" >&2; die "$1: mmdebstrap stopped"; }
}

# pythons for uv: archives with bin, lib and include below python/, and the list of them.
make_pythons() {
  local spec full minor dir jar
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
}

# torch for three Pythons, and wheels in place of what it requires of NVIDIA's.
make_torch() {
  local dir=$cache/torch version
  [ -e "$dir/.made-$digest" ] && return
  mkdir -p "$dir"
  for version in 3.10 3.12 3.13; do
    pip download --no-deps --only-binary :all: --python-version "$version" --platform manylinux1_x86_64 --dest "$dir" "torch==$torch"
  done
  "$python" dev/e2e/torch-standins.py "$dir" "$dir"
  touch "$dir/.made-$digest"
}

make_ubuntu() {
  made "${names[0]}" && made "${names[1]}" && return
  local work keys
  work=$(mktemp -d "$cache/work.XXXXXX")
  keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -e "$keys" ]; then
    curl --fail --silent --show-error --location -o "$work/keys.deb" "$ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
    echo "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f  $work/keys.deb" | sha256sum --check --quiet
    dpkg -x "$work/keys.deb" "$work/keys"
    keys=$work/keys$keys
  fi
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
  mkdir "$work/runtime/usr/local/cuda-13.0/targets/x86_64-linux/lib"
  cp -a "$work"/devel/usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so* "$work/runtime/usr/local/cuda-13.0/targets/x86_64-linux/lib/"
  for home in devel runtime; do
    echo /usr/local/cuda/targets/x86_64-linux/lib >"$work/$home/etc/ld.so.conf.d/000_cuda.conf"
    chroot "$work/$home" ldconfig
    import_tree "$work/$home" "docker.io/nvidia/cuda:13.0.2-$home-ubuntu22.04" 'ENV CUDA_VERSION=13.0.2' \
      'ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      'ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64' 'ENV NVIDIA_VISIBLE_DEVICES=all' 'ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility' \
      'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]'
  done
  rm -rf "$work"
}

make_manylinux() {
  made "${names[2]}" && made "${names[3]}" && return
  local work keys=/usr/share/keyrings/debian-archive-keyring.gpg
  work=$(mktemp -d "$cache/work.XXXXXX")
  system bullseye http://deb.debian.org/debian "$keys" "$work/devel" ca-certificates,g++,make,patch
  system bullseye http://deb.debian.org/debian "$keys" "$work/runtime" ca-certificates,libstdc++6,libgomp1
  mkdir -p "$work/devel/opt/_internal" "$work/devel/opt/python"
  tar -C "$work/devel/opt/_internal" -xzf "$cache/pythons/cpython-3.11.3.tar.gz"
  mv "$work/devel/opt/_internal/python" "$work/devel/opt/_internal/cpython-3.11.3"
  ln -s /opt/_internal/cpython-3.11.3 "$work/devel/opt/python/cp311-cp311"
  import_tree "$work/devel" "${names[2]}" 'ENV AUDITWHEEL_PLAT=manylinux_2_28_x86_64' 'ENV LC_ALL=en_US.UTF-8' \
    'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  import_tree "$work/runtime" "${names[3]}" 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
  rm -rf "$work"
}

# without_python IMAGE NAME: what a container of the image has when Python, git, ninja and ccache are gone.
without_python() {
  made "$2" && return
  local container=kiln-stock-images-$$
  podman --runtime runc run --name "$container" --network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "$1" \
    sh -c 'rm -rf /usr/bin/python3* /usr/lib/python3 /usr/lib/python3.* /usr/share/python-wheels /usr/bin/git /usr/lib/git-core /usr/bin/ninja /usr/bin/ccache /usr/include/python3*' >/dev/null
  podman commit -q --change "LABEL kiln.stock=$digest" "$container" "$2" >/dev/null
  podman rm -f -t 0 "$container" >/dev/null
  say "$2"
}

make_pythons
make_ubuntu
make_manylinux
make_torch
dev/e2e/images.sh trixie-cuda124 trixie-runtime
without_python localhost/kiln-e2e/trixie-cuda124 "${names[4]}"
without_python localhost/kiln-e2e/trixie-runtime "${names[5]}"
