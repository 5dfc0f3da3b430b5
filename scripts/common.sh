# Shared by the scripts in this folder; sourced, not run.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Debian 12 and newer, Ubuntu 24.04 and newer.
build_packages=(
  g++ cmake ninja-build git ca-certificates pkg-config
  libhwy-dev libmsgpack-cxx-dev cppzmq-dev libzmq3-dev libcli11-dev nlohmann-json3-dev
  libtomlplusplus-dev libspdlog-dev libsystemd-dev libxxhash-dev libexpected-dev libedit-dev liburing-dev
)
# systemd: systemd-analyze checks the units.
test_packages=(libgtest-dev libbenchmark-dev python3 python3-venv python3-pip systemd)

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
if [ ! -t 2 ] || [ -n "${NO_COLOR:-}" ]; then
  say() { printf '==> %s\n' "$*" >&2; }
fi

# ensure_packages PACKAGE...: installs what is missing as root; without root, says what to install.
ensure_packages() {
  command -v dpkg-query >/dev/null || {
    echo "This script installs with apt and knows Debian and Ubuntu; elsewhere, install: $*" >&2
    return 0
  }
  local missing=() package
  for package in "$@"; do
    # One line per architecture that knows the package.
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  # A cmake from elsewhere (pip, a vendor) serves as well, if it is new enough.
  if printf '%s\n' "${missing[@]}" | grep -qx cmake && cmake_is_new_enough; then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | grep -vx cmake)
  fi
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    printf 'Missing packages. Install them, then run this script again:\n  sudo apt-get install %s\n' \
      "${missing[*]}" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

cmake_is_new_enough() {
  command -v cmake >/dev/null || return 1
  local version
  version=$(cmake --version | awk 'NR==1 {print $3}')
  [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

# build PRESET TARGET-OPTIONS...: configures and builds build/PRESET.
build() {
  local preset=$1
  shift
  say "building ($preset)"
  cmake -S "$root" --preset "$preset" "$@" >"$root/build-$preset.log" 2>&1 || {
    cat "$root/build-$preset.log" >&2
    exit 1
  }
  rm -f "$root/build-$preset.log"
  cmake --build "$root/build/$preset"
}
