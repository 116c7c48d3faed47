#!/usr/bin/env bash
# Runs what depends on the Python under each of 3.11 to 3.14: test_pythons.sh [PYTHON…]. ROOMS: other tests than these.
# A name (python3.14) is looked for on the PATH, then among pyenv's versions; on Debian, root gets it from a release of
# Debian that has it. A path is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A debian=([python3.13]=trixie [python3.14]=forky)

# Started and not only looked for: a shim of pyenv may lead nowhere.
starts() { [[ $("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null) == True ]]; }

# Unpacked and not installed: its loader and libraries are those beside it, so that an older Debian runs it too.
from_debian() {
  local release=${debian[$1]-} root=$PWD/build/debian-$1
  local python=$root/usr/bin/$1 libraries
  starts "$python" && { echo "$python"; return; }
  [[ $release ]] || { echo "of Debian it is not known"; return 1; }
  command -v mmdebstrap >/dev/null && command -v patchelf >/dev/null && ((EUID == 0)) \
    || { echo "Debian's $release has it: as root, apt-get install mmdebstrap patchelf"; return 1; }
  rm -rf "$root"
  mkdir -p build
  # Also from a mirror that stands still: what it says is signed all the same.
  mmdebstrap --quiet --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' \
    --include="$1-venv,libstdc++6" "$release" "$root" >&2 || { echo "Debian's $release was not to be had"; return 1; }
  libraries=$(echo "$root"/usr/lib/*-linux-gnu)
  # RPATH and no variable: it is for what this program loads, and not for the programs it starts.
  patchelf --set-interpreter "$(echo "$libraries"/ld-linux-*)" --force-rpath --set-rpath "$libraries" "$python"
  sed -i "s|'/usr/share/python-wheels/|'$root/usr/share/python-wheels/|" "$root/usr/lib/$1"/_sysconfigdata_*.py
  starts "$python" || { echo "that of Debian's $release does not run here"; return 1; }
  echo "$python"
}

# Prints the program, or why there is none.
find_python() {
  local candidate
  for candidate in "$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$1"; do
    starts "$candidate" && { echo "$candidate"; return; }
  done
  [[ $1 != */* ]] || { echo "it does not start, or is older than 3.11"; return 1; }
  from_debian "$1"
}

(($#)) || set -- python3.11 python3.12 python3.13 python3.14
read -ra rooms <<<"${ROOMS:-tests/checks tests/cli tests/host tests/memory tests/text tests/image tests/test_krew.py}"
failed=()
for wanted; do
  python=$(find_python "$wanted") || { echo "== $wanted: neither on the PATH nor of pyenv, not tried: $python"; continue; }
  version=$("$python" -c 'import platform; print(platform.python_version())')
  echo "== Python $version ($python)"
  environment=build/python-$version
  make --no-print-directory setup VENV="$environment" PYTHON="$python"
  "$environment/bin/pytest" -q -n 2 -m "not cluster and not real_node" -o cache_dir="$environment/cache" "${rooms[@]}" \
    || failed+=("$version")
done
((${#failed[@]} == 0)) || { echo "failed under: ${failed[*]}" >&2; exit 1; }
