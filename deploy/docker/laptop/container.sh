#!/usr/bin/env bash
# Builds the laptop's image and runs a command in it, with this checkout mounted: container.sh [COMMAND...], default a shell.
# The environments lie in build/container, beside those of the host. ENGINE names docker or podman.
set -euo pipefail
cd "$(dirname "$0")/../../.."
engine=${ENGINE:-$(command -v docker || command -v podman || true)}
if [ -z "$engine" ]; then
  echo "make container needs docker or podman (found neither); next: install one of them" >&2
  exit 1
fi
mkdir -p build/container/venv build/container/venv-triton .venv .venv-triton
# Triton Inference Server and Envoy are there for x86-64 only: elsewhere the container is emulated.
"$engine" build --platform linux/amd64 --tag shortlist-laptop deploy/docker/laptop
terminal=(); if [ -t 0 ]; then terminal=(--interactive --tty); fi
exec "$engine" run --rm "${terminal[@]}" --platform linux/amd64 --user "$(id -u):$(id -g)" --network host \
  --volume "$PWD:/project" --volume "$PWD/build/container/venv:/project/.venv" \
  --volume "$PWD/build/container/venv-triton:/project/.venv-triton" shortlist-laptop "${@:-bash}"
