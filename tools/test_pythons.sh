#!/usr/bin/env bash
# Runs the tests that depend on the Python version under 3.11 to 3.14: test_pythons.sh [PYTHON…]. ROOMS: other test folders.
# A name (python3.14) is searched on the PATH, then among pyenv's versions; on Debian, root unpacks it from a Debian release
# that has it. A path is used unchanged.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A debian=([python3.13]=trixie [python3.14]=forky)

# Starts the program, because a shim of pyenv may not work.
starts() { [[ $("$1" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null) == True ]]; }

# Unpacked but not installed, with its own loader and libraries, so that an older Debian can run it.
from_debian() {
  local release=${debian[$1]-} root=$PWD/build/debian-$1
  local python=$root/usr/bin/$1 libraries
  starts "$python" && { echo "$python"; return; }
  [[ $release ]] || { echo "no Debian release is configured for it"; return 1; }
  command -v mmdebstrap >/dev/null && command -v patchelf >/dev/null && ((EUID == 0)) \
    || { echo "Debian's $release has it: as root, apt-get install mmdebstrap patchelf"; return 1; }
  rm -rf "$root"
  mkdir -p build
  # Accept an outdated mirror too: its content is signed.
  mmdebstrap --quiet --variant=extract --aptopt='Acquire::Check-Valid-Until "false"' \
    --include="$1-venv,libstdc++6" "$release" "$root" >&2 || { echo "cannot download from Debian's $release"; return 1; }
  libraries=$(echo "$root"/usr/lib/*-linux-gnu)
  # RPATH instead of a variable: it applies to this program's libraries, not to the programs that it starts.
  patchelf --set-interpreter "$(echo "$libraries"/ld-linux-*)" --force-rpath --set-rpath "$libraries" "$python"
  sed -i "s|'/usr/share/python-wheels/|'$root/usr/share/python-wheels/|" "$root/usr/lib/$1"/_sysconfigdata_*.py
  starts "$python" || { echo "the Python of Debian's $release does not run here"; return 1; }
  echo "$python"
}

# Prints the program, or the reason why there is none.
find_python() {
  local candidate
  for candidate in "$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$1"; do
    starts "$candidate" && { echo "$candidate"; return; }
  done
  [[ $1 != */* ]] || { echo "does not start, or is older than 3.11"; return 1; }
  from_debian "$1"
}

(($#)) || set -- python3.11 python3.12 python3.13 python3.14
read -ra rooms <<<"${ROOMS:-tests/checks tests/cli tests/host tests/memory tests/text tests/image tests/test_krew.py}"
failed=()
for wanted; do
  python=$(find_python "$wanted") || { echo "== $wanted: not on the PATH and not in pyenv, skipped: $python"; continue; }
  version=$("$python" -c 'import platform; print(platform.python_version())')
  echo "== Python $version ($python)"
  environment=build/python-$version
  make --no-print-directory setup VENV="$environment" PYTHON="$python"
  "$environment/bin/pytest" -q -n 2 -m "not cluster and not real_node" -o cache_dir="$environment/cache" "${rooms[@]}" \
    || failed+=("$version")
done
((${#failed[@]} == 0)) || { echo "failed under: ${failed[*]}" >&2; exit 1; }
