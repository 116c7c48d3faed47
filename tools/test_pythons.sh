#!/usr/bin/env bash
# Runs what depends on the Python under each that is here: test_pythons.sh [PYTHON…]. ROOMS: other tests than these.
set -euo pipefail
cd "$(dirname "$0")/.."

(($#)) || set -- python3.11 python3.12 python3.13 python3.14
read -ra rooms <<<"${ROOMS:-tests/checks tests/cli tests/host tests/memory tests/text tests/image tests/test_krew.py}"
failed=()
for python; do
  # Started and not only looked for: a shim of pyenv may lead nowhere.
  if ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
    echo "== $python: not here, not tried"
    continue
  fi
  echo "== Python $version"
  environment=build/python-$version
  make --no-print-directory setup VENV="$environment" PYTHON="$python"
  "$environment/bin/pytest" -q -n 2 -m "not cluster and not real_node" -o cache_dir="$environment/cache" "${rooms[@]}" \
    || failed+=("$version")
done
((${#failed[@]} == 0)) || { echo "failed under: ${failed[*]}" >&2; exit 1; }
