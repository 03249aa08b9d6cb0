#!/usr/bin/env bash
# The pipeline image, built with buildah from its Dockerfile: on a minimal Debian where no registry can be reached, so
# that all it needs is a mirror of Debian and a package index. Prints the sizes, builds a second time from the kept
# layers, and imports in it what the steps of each module of components/ import, each in ten seconds of processor time.
# Nothing is left behind. It needs no root where there are user namespaces and a range in /etc/subuid. What the machine
# lacks skips it, in one line; a build that fails is an error.
#
# Usage: .ci/images.sh            TMPDIR=/folder with 15 GB of free disk
#        .ci/images.sh gpu        the GPU image instead, twice the disk; what its packages import needs a GPU
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "== images: skipped, $1"; exit 0; }
base=docker.io/library/python:3.11-slim
kind=${1:-pipeline}
case $kind in pipeline) gigabytes=15 ;; gpu) gigabytes=30 ;; *) echo "usage: $0 [gpu]" >&2; exit 2 ;; esac

. .ci/minimal_debian.sh
install_tools buildah mmdebstrap
for tool in buildah mmdebstrap; do command -v "$tool" > /dev/null || skip "$tool is not installed"; done
if [ "$(id -u)" = 0 ]; then
  unshare --mount true 2> /dev/null || skip "root may not mount here"
else
  grep -q "^$(id -un):" /etc/subuid 2> /dev/null || skip "$(id -un) has no range of ids in /etc/subuid"
fi
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}" shortlist-images-XXXXXX)
chmod 711 "$work"  # without root, mmdebstrap works as other users of its namespace
export BUILDAH_ISOLATION=chroot TMPDIR=$work CONTAINERS_STORAGE_CONF=$work/storage.conf
cat > "$work/storage.conf" <<SETTINGS
[storage]
driver = "overlay"
graphroot = "$work/storage"
rootless_storage_path = "$work/storage"
runroot = "$work/run"
SETTINGS
finish() {
  [ -z "${server:-}" ] || kill "$server"
  buildah rm --all > /dev/null 2>&1 || true
  if [ "$(id -u)" = 0 ]; then
    umount "$work/storage/overlay" 2> /dev/null || true
    rm -rf "$work"
  else
    buildah unshare rm -rf "$work"  # files of other users of its namespace
  fi
}
trap finish EXIT
buildah info > /dev/null 2> "$work/log" || skip "buildah cannot mount layers here: $(tail -n 1 "$work/log")"
[ "$(df --output=avail -B 1G "$work" | tail -n 1)" -ge "$gigabytes" ] \
  || skip "$work has less than $gigabytes GB of free disk"

# Where pip is told to look there may be a build of torch for CPUs; a build cannot read this machine's folders.
torch=$(grep '^torch==' requirements/run.txt)
mkdir -p "$work/index/torch"
if [ "$kind" = gpu ]; then
  :  # torch for CUDA is in the package index
elif python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 -d "$work/index/torch" "$torch+cpu" \
  2> /dev/null; then
  python3 -u -m http.server --bind 127.0.0.1 --directory "$work/index" 0 > "$work/port" 2> /dev/null &
  server=$!
  until [ -s "$work/port" ]; do sleep 0.1; done
  TORCH_INDEX=http://127.0.0.1:$(sed 's/.* port \([0-9]*\) .*/\1/' "$work/port")
  export TORCH_INDEX
elif ! curl -sfL -m 60 -o /dev/null https://download.pytorch.org/whl/cpu/torch/; then
  skip "no index with a build of torch for CPUs can be reached"
fi

if ! buildah pull -q "$base" > /dev/null 2>&1; then
  echo "== no registry: a minimal Debian stands in for $base"
  authorities=/etc/ssl/certs/ca-certificates.crt
  make_minimal_debian "$work/debian.tar" ca-certificates,libpython3.11,python3,python3-venv,python3-pip \
    --customize-hook="upload $authorities $authorities" --customize-hook='ln -sf python3 "$1/usr/bin/python"'
  container=$(buildah from scratch)
  buildah add -q "$container" "$work/debian.tar" / > /dev/null
  buildah config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    --env PIP_CERT=$authorities --env SSL_CERT_FILE=$authorities "$container"
  buildah commit -q --rm "$container" "$base" > /dev/null
  rm "$work/debian.tar"
fi
container=$(buildah from "$base")
buildah run "$container" -- true > /dev/null 2> "$work/log" \
  || skip "buildah cannot run a program in a container here: $(tail -n 1 "$work/log")"
PYTHON_DIGEST=$(buildah images --digests --format '{{.Digest}}' "$base" | head -n 1)
export PYTHON_DIGEST
build() { make --no-print-directory images ONLY="$kind" ${TORCH_INDEX:+TORCH_INDEX="$TORCH_INDEX"}; }
echo "== build" && time build | tee "$work/built"
echo "== layers above 10 MB, none above 1 200"
python3 - "$work/storage/overlay-layers/layers.json" <<'LAYERS'
import json, sys
sizes = [round(layer.get("diff-size", 0) / 1e6) for layer in json.load(open(sys.argv[1]))]
print(*(f"{size} MB" for size in sizes if size > 10), sep=", ")
sys.exit(max(sizes) > 1_200)
LAYERS
echo "== again, from the kept layers" && time build > /dev/null

[ "$kind" = pipeline ] || exit 0
image=$(sed -n 's/^export SHORTLIST_IMAGE=//p' "$work/built")
container=$(buildah from --pull-never "$image")
# A step's function imports what it needs when it runs: all of a module's functions in one process are the most there is.
imports='import ast, importlib, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
for node in ast.walk(ast.parse(open(sys.argv[1]).read())):
    if isinstance(node, ast.ImportFrom):
        importlib.import_module(node.module)
    elif isinstance(node, ast.Import):
        [importlib.import_module(name.name) for name in node.names]
print(f"{sys.argv[1]}: {time.process_time():.1f} s")'
echo "== what the steps of each module of components/ import: processor time, at most 10 s"
for file in components/*.py; do
  timeout 600 buildah run "$container" -- python -c "$imports" "/app/$file" || { echo "$file: not within 10 s"; exit 1; }
done
