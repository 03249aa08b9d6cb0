#!/usr/bin/env bash
# The README's first command where nothing but the public package index is at hand: a minimal Debian in a folder, then
# the other supported versions of Python that this machine has, each in a clone of its own. Root is needed (chroot).
#
# Usage: .ci/fresh_machine.sh [debian|pythons]    default: both
#        .ci/fresh_machine.sh tests               make test on the minimal Debian: a quarter of an hour
#   ROOT=/tmp/shortlist-debian   where the minimal system lies; made when it is not there
#   VERSIONS="3.12 3.13"         the other versions of Python
set -euo pipefail
. "$(dirname "$0")/minimal_debian.sh"
checkout=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
root=${ROOT:-/tmp/shortlist-debian}
work=$(mktemp -d)
mounts=()
# The size proves nothing of a machine; a long test runs the whole demo (tests/graphs/test_installed.py).
small_run="SET=data.source.rows=60000"
finish() {
  for mount in "${mounts[@]}"; do umount -R -l "$mount" 2> /dev/null || true; done
  rm -rf "$work" "$root/root/project"
}
trap finish EXIT

# A run, then the printed request at a served release: both must succeed.
cat > "$work/serve_a_request.sh" <<'COMMANDS'
set -euo pipefail
make run $SETTINGS | tee run.log
grep -q '^Blessed: ' run.log || { echo "no blessed model"; exit 1; }
make serve | tee serve.log
trap 'make stop' EXIT
grep -m 1 -A 20 '^ *curl ' serve.log | sed '/^ *curl /,/[^\\]$/!d' > request.sh
bash request.sh | tee answer.json
grep -q '"items"' answer.json || { echo "the request was not answered"; exit 1; }
COMMANDS

make_debian() {
  if [ ! -e "$root/bin/sh" ]; then
    install_tools mmdebstrap
    make_minimal_debian "$root" ca-certificates,curl,git,make,procps,python3,python3-venv
  fi
  for folder in proc sys dev; do
    mount --rbind "/$folder" "$root/$folder" && mount --make-rslave "$root/$folder" && mounts+=("$root/$folder")
  done
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$root/root/project" && git clone -q "$checkout" "$root/root/project"
  cp "$work/serve_a_request.sh" "$root/root/"
}

# Runs a command in the clone on the minimal Debian; how to reach the network is all it knows of this machine.
in_debian() {
  local network
  network=$(env | grep -iE '^(https?_proxy|no_proxy)=' || true)
  chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    SETTINGS="$small_run" $network \
    bash -c "cd /root/project && $1"
}

try_debian() {
  make_debian
  chroot "$root" dpkg --purge libpython3.11 > /dev/null 2>&1 || true
  echo "== minimal Debian 12 without libpython3.11: refused before anything is downloaded"
  if in_debian 'time make run' 2> "$work/refusal.log"; then echo "make run was not refused"; exit 1; fi
  cat "$work/refusal.log"
  grep -q 'next: apt-get install libpython3.11 (or make python)' "$work/refusal.log"
  [ ! -e "$root/root/project/.venv" ]
  chroot "$root" bash -c 'apt-get update -qq && apt-get install -y -qq libpython3.11' > /dev/null 2>&1
  echo "== minimal Debian 12: make run, make serve, the printed request"
  in_debian 'time bash /root/serve_a_request.sh'
  du -sh "$root/root/project/.venv" "$root/root/project/.venv-triton"
}

try_debian_tests() {
  make_debian
  chroot "$root" bash -c 'apt-get update -qq && apt-get install -y -qq libpython3.11' > /dev/null 2>&1
  echo "== minimal Debian 12: make test"
  in_debian 'time make test'
}

# Only the package index: no folder of wheels, no further index.
try_pythons() {
  for version in ${VERSIONS:-3.12 3.13}; do
    local python
    python=$(ls -d "$HOME"/.pyenv/versions/"$version".*/bin/python "/usr/bin/python$version" 2> /dev/null | head -n 1 || true)
    if [ -z "$python" ]; then echo "== Python $version: skipped, this machine has none"; continue; fi
    echo "== Python $version ($python): set-up, a small run, the printed request"
    git clone -q "$checkout" "$work/$version"
    (cd "$work/$version" && env -u PIP_FIND_LINKS -u PIP_EXTRA_INDEX_URL -u PIP_CONSTRAINT PIP_CONFIG_FILE=/dev/null \
      PYTHON="$python" SETTINGS="$small_run" bash "$work/serve_a_request.sh")
    rm -rf "${work:?}/$version"
  done
}

case ${1:-both} in
  debian) try_debian ;;
  pythons) try_pythons ;;
  tests) try_debian_tests ;;
  both) try_debian; try_pythons ;;
  *) echo "usage: $0 [debian|pythons]" >&2; exit 2 ;;
esac
