#!/usr/bin/env bash
# The pipeline image, built with buildah from its Dockerfile: on a minimal Debian where no registry can be reached, so
# that all it needs is a mirror of Debian and a package index. Prints the size, builds a second time from the kept
# layers, and imports in it what the steps of each module of components/ import, each within ten seconds. Root is needed
# (debootstrap).
#
# Usage: .ci/images.sh            TORCH_INDEX=url where torch's own index cannot be reached
set -euo pipefail
cd "$(dirname "$0")/.."
base=docker.io/library/python:3.11-slim
command -v buildah debootstrap > /dev/null || { apt-get update -qq && apt-get install -y -qq buildah debootstrap > /dev/null; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BUILDAH_ISOLATION=chroot

if ! buildah pull -q "$base" > /dev/null 2>&1 && ! buildah inspect "$base" > /dev/null 2>&1; then
  echo "== no registry: a minimal Debian stands in for $base"
  debootstrap --variant=minbase --include=ca-certificates,libpython3.11,python3,python3-venv,python3-pip bookworm "$work/root" \
    > "$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log"; exit 1; }
  ln -sf python3 "$work/root/usr/bin/python"
  cp -L /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/ca-certificates.crt"
  container=$(buildah from scratch)
  buildah copy -q "$container" "$work/root" / > /dev/null
  buildah config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
    --env PIP_CERT=/etc/ssl/certs/ca-certificates.crt "$container"
  buildah commit -q --rm "$container" "$base" > /dev/null
fi
PYTHON_DIGEST=$(buildah images --digests --format '{{.Digest}}' "$base" | head -n 1)
export PYTHON_DIGEST
build() { make --no-print-directory images ONLY=pipeline ${TORCH_INDEX:+TORCH_INDEX="$TORCH_INDEX"}; }
echo "== build" && build | tee "$work/built"
echo "== again, from the kept layers" && time build > /dev/null

image=$(sed -n 's/^export SHORTLIST_IMAGE=//p' "$work/built")
container=$(buildah from --pull-never "$image")
# A step's function imports what it needs when it runs: all of a module's functions in one process are the most there is.
imports='import ast, importlib, sys
for node in ast.walk(ast.parse(open(sys.argv[1]).read())):
    if isinstance(node, ast.ImportFrom):
        importlib.import_module(node.module)
    elif isinstance(node, ast.Import):
        [importlib.import_module(name.name) for name in node.names]'
echo "== what the steps of each module of components/ import: seconds, at most 10"
TIMEFORMAT=%R
for file in components/*.py; do
  echo "$file"
  time timeout 10 buildah run "$container" -- python -c "$imports" "/app/$file" || { echo "$file: not within 10 s"; exit 1; }
done
buildah rm "$container" > /dev/null
