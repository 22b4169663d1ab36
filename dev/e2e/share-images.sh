#!/usr/bin/env bash
# Makes the images in which rows share compiles, on top of trixie-cuda124 of images.sh:
#
#   localhost/kiln-e2e/share-torch26   Python 3.13 (Debian 13) and 3.11 (Debian 12), both with PyPI's torch 2.6.0 (CUDA 12.4)
#   localhost/kiln-e2e/share-torch25   Python 3.11 with PyPI's torch 2.5.1 (CUDA 12.4)
#
# The libraries of CUDA are Debian's. cuDNN and cuSPARSELt are libraries with torch's symbols and nothing behind them, as in
# cudnn-stub.sh, so that torch can be imported where extensions are built. Does nothing for an image that is there.
# Needs root, podman, and the network: Debian's archive and a package index (PIP_INDEX_URL, PIP_CERT as usual).
set -euo pipefail
cd "$(dirname "$0")/../.."

prefix=localhost/kiln-e2e
say() { printf 'share-images: %s\n' "$*" >&2; }

# What runs in the container; $TORCH and $PYTHONS are given.
setup=$(cat <<'SETUP'
set -eu
export DEBIAN_FRONTEND=noninteractive
sed -n 's/ trixie / bookworm /p' /etc/apt/sources.list >/etc/apt/sources.list.d/bookworm.list
apt-get -q update
apt-get -q -y --no-install-recommends install python3.11 python3.11-dev libnccl2
# These depend on a Python 3 of their own suite; their files do not.
cd /var/tmp
apt-get -q download python3.11-venv/bookworm python3-distutils/bookworm python3-lib2to3/bookworm python3-setuptools-whl/bookworm python3-pip-whl/bookworm
for deb in *.deb; do dpkg -x "$deb" /; done
rm -- *.deb
python3 -m venv /opt/pip
for version in $PYTHONS; do
  /opt/pip/bin/pip --python "/usr/bin/python$version" install --quiet --no-cache-dir --break-system-packages --no-deps --no-compile --root-user-action ignore \
    "torch==$TORCH" typing_extensions filelock sympy mpmath networkx jinja2 markupsafe fsspec numpy
done
rm -rf /opt/pip /var/lib/apt/lists/* /etc/apt/sources.list.d/bookworm.list
apt-get clean
libraries=/usr/local/lib/python3.11/dist-packages/torch/lib
# stub LIBRARY PREFIX: every symbol that torch wants, and no function behind any of them.
stub() {
  nm -D --undefined-only "$libraries"/*.so | sed -n "s/^ *U \($2[A-Za-z0-9_]*\)\(@.*\)\{0,1\}\$/int \1(void) { return 1; }/p" | sort -u >/tmp/stub.c
  printf '%s { global: %s*; local: *; };\n' "$1" "$2" >/tmp/stub.map
  cc -shared -fPIC -nostdlib -Wl,-soname,"$1" -Wl,--version-script=/tmp/stub.map -o "/usr/lib/x86_64-linux-gnu/$1" /tmp/stub.c
  rm /tmp/stub.c /tmp/stub.map
}
stub libcudnn.so.9 cudnn
if ! ldconfig -p | grep -q libcusparseLt.so.0; then stub libcusparseLt.so.0 cusparseLt; fi
for version in $PYTHONS; do "python$version" -c 'import torch; print(torch.__version__, torch.version.cuda)'; done
SETUP
)

# make NAME TORCH PYTHONS
make_image() {
  local name=$1 digest container args=(--network host --env "TORCH=$2" --env "PYTHONS=$3")
  digest=$(printf '%s\n' "$setup" "$@" "$(podman image inspect --format '{{.Id}}' "$prefix/trixie-cuda124")" | sha256sum | cut -c1-12)
  if [ "$(podman image inspect --format '{{index .Labels "kiln.recipe"}}' "$prefix/$name" 2>/dev/null)" = "$digest" ]; then
    say "$name is there"
    return
  fi
  say "$name: torch $2 for Python $3"
  if [ -n "${PIP_INDEX_URL:-}" ]; then args+=(--env PIP_INDEX_URL); fi
  local certificates=${PIP_CERT:-${SSL_CERT_FILE:-}}
  if [ -n "$certificates" ]; then
    args+=(--volume "$certificates:/etc/kiln/ca.crt:ro" --env PIP_CERT=/etc/kiln/ca.crt)
  fi
  container=kiln-share-images-$$
  # shellcheck disable=SC2064 # the name of now
  trap "podman rm -f -t 0 $container >/dev/null 2>&1 || true" EXIT
  podman --runtime runc run --name "$container" --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "${args[@]}" "$prefix/trixie-cuda124" sh -c "$setup" \
    >".cache/images/$name.log" 2>&1 || { tail -n 20 ".cache/images/$name.log" >&2; say "$name: its whole output is in .cache/images/$name.log"; exit 1; }
  podman commit -q --change "LABEL kiln.recipe=$digest" "$container" "$prefix/$name" >/dev/null
  podman rm -f -t 0 "$container" >/dev/null
  say "$name: $(tail -n 1 ".cache/images/$name.log")"
}

dev/e2e/images.sh trixie-cuda124
mkdir -p .cache/images
exec 9>.cache/images/share-lock
flock 9
make_image share-torch26 2.6.0 "3.13 3.11"
make_image share-torch25 2.5.1 "3.11"
