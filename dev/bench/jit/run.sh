#!/usr/bin/env bash
# Compares kiln jit with torch.utils.cpp_extension.load inside of a container that has torch and a compiler, so that torch's own files
# can be changed:
#
#   dev/bench/jit/run.sh [ROUNDS]    cold builds of each, default 1; warm ones are always seven
#
# The image is made by dev/e2e/images.sh trixie-torch26. Needs podman.
set -euo pipefail
cd "$(dirname "$0")/../../.."

image=${KILN_BENCH_IMAGE:-localhost/kiln-e2e/trixie-torch26}
podman image exists "$image" || { echo "benchjit: no image $image: dev/e2e/images.sh trixie-torch26 makes it" >&2; exit 1; }
limits=()
for name in nofile:-Hn nproc:-Hu; do
  most=$(ulimit "${name#*:}")
  [ "$most" = unlimited ] && most=$(cat /proc/sys/kernel/pid_max)
  [ "${name%%:*}" = nproc ] && [ "$most" -gt "$(cat /proc/sys/kernel/pid_max)" ] && most=$(cat /proc/sys/kernel/pid_max)
  limits+=(--ulimit "${name%%:*}=$most:$most")
done
bundle=()
if [ -n "${SSL_CERT_FILE:-}" ]; then
  bundle=(--volume "$SSL_CERT_FILE:/etc/ssl/certs/ca-certificates.crt:ro")
fi
# torch's builder imports setuptools, which its package does not bring.
exec podman --runtime "${KILN_OCI_RUNTIME:-runc}" run --rm --network host "${limits[@]}" "${bundle[@]}" \
  --volume "$PWD/bin/kiln:/usr/local/bin/kiln:ro" --volume "$PWD/python:/opt/python:ro" --volume "$PWD/dev/bench/jit:/opt/bench:ro" \
  --env DEBIAN_FRONTEND=noninteractive "$image" bash -c '
    { apt-get -q update && apt-get -q -y --no-install-recommends install python3-setuptools; } >/tmp/apt.log 2>&1 || { tail /tmp/apt.log; exit 1; }
    exec python3 /opt/bench/bench.py --rounds "$0"' "${1:-1}"
