# Sourced by the scripts beside it, which run at the same time: tools of Debian, and a minimal Debian 12.

# Installs the tools that are missing, where this is root; the caller looks whether it has them.
install_tools() {
  local tool missing=()
  for tool in "$@"; do command -v "$tool" > /dev/null || missing+=("$tool"); done
  if [ ${#missing[@]} != 0 ] && [ "$(id -u)" = 0 ]; then
    flock "${TMPDIR:-/tmp}/shortlist-apt.lock" sh -c 'apt-get update -qq && apt-get install -y -qq "$@"' install \
      "${missing[@]}" > /dev/null 2>&1 || true
  fi
}

# Makes a minimal Debian from the mirror that this machine uses: FOLDER_OR_TAR PACKAGES [OPTIONS OF mmdebstrap].
make_minimal_debian() {
  local target=$1 packages=$2 log mirror
  shift 2
  log=$(mktemp -p "$work")
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 2> /dev/null | grep -m 1 '/debian/' || true)
  mmdebstrap --variant=minbase --include="$packages" "$@" bookworm "$target" ${mirror:+"$mirror"} > "$log" 2>&1 \
    || { tail -n 5 "$log"; exit 1; }
}
