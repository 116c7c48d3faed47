"""The driver's library as real clusters' nodes have it, below /host or injected: found, or a message that names it."""

from __future__ import annotations

import platform
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.model import Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.probes.nvml.driver import Driver
from gpu_healthcheck.healthcheck.probes.nvml.gpus import Gpus
from gpu_healthcheck.sim import c_library, nvml_library
from gpu_healthcheck.sim.node import DRIVER_VERSION, SimulatedNode

SONAME = "libnvidia-ml.so.1"
VERSIONED = f"libnvidia-ml.so.{DRIVER_VERSION}"
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine (elf.h)
HERE = platform.machine()
MUSL = f"libc.musl-{HERE}.so.1"
ELSEWHERE = "aarch64" if HERE == "x86_64" else "x86_64"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    """A node with a driver and no library yet."""
    with SimulatedNode.create(tmp_path / "host", "g6.xlarge") as simulated_node:
        for file in simulated_node.library.parent.iterdir():
            file.unlink()
        yield simulated_node


@pytest.fixture
def driver(node: SimulatedNode) -> Iterator[Driver]:
    one = Driver(node.root, use_loader=False)
    yield one
    one.end()


def install(directory: Path) -> Path:
    """As NVIDIA's installer leaves it: a file named by its version, and the link that programs ask for."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / VERSIONED
    library.write_bytes(nvml_library.build().read_bytes())
    (directory / SONAME).symlink_to(VERSIONED)
    return library


def link(root: Path, links: dict[str, str]) -> None:
    for path, target in links.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if (root / path).is_dir():
            (root / path).rmdir()
        (root / path).symlink_to(target)


# Where the library lies, and the links that such a host has on the way.
HOSTS: dict[str, tuple[str, dict[str, str]]] = {
    "Amazon Linux": ("usr/lib64", {"lib64": "usr/lib64"}),
    "Ubuntu": ("usr/lib/x86_64-linux-gnu", {"lib": "usr/lib"}),
    "Ubuntu on Graviton": ("usr/lib/aarch64-linux-gnu", {"lib": "usr/lib"}),
    "Debian without merged /usr": ("lib/x86_64-linux-gnu", {}),
    "GPU operator, Ubuntu driver": (
        "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        {"run/nvidia/driver/lib": "usr/lib", "var/run": "/run"},
    ),
    "GPU operator, Red Hat driver": ("run/nvidia/driver/usr/lib64", {"run/nvidia/driver/lib64": "/usr/lib64"}),
    "GPU operator on Graviton": ("run/nvidia/driver/usr/lib/aarch64-linux-gnu", {"run/nvidia/driver/lib": "usr/lib"}),
    "GKE, Container-Optimized OS": ("home/kubernetes/bin/nvidia/lib64", {}),
    "GKE, Container-Optimized OS, a bundle elsewhere": (
        "var/lib/nvidia/lib64",
        {"home/kubernetes/bin/nvidia": "/var/lib/nvidia"},
    ),
    "GKE, Ubuntu": ("opt/nvidia/lib64", {"lib": "usr/lib"}),
    "Bottlerocket": ("x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla", {"lib64": "/usr/lib"}),
    "Bottlerocket on Graviton": ("aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla", {}),
    "Talos": ("usr/local/glibc/usr/lib", {}),
}


@pytest.mark.parametrize(("place", "links"), HOSTS.values(), ids=HOSTS)
def test_nvml_library_is_found_on_each_host(
    node: SimulatedNode, driver: Driver, place: str, links: dict[str, str]
) -> None:
    library = install(node.root / place)
    link(node.root, links)

    answer = driver.read().answer

    assert isinstance(answer, Gpus), answer
    assert (answer.library, answer.driver_version, len(answer.gpus)) == (str(library), DRIVER_VERSION, 1)


def test_nvml_library_of_the_runtime_precedes_the_host_library(
    node: SimulatedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The runtime puts it into the container's own library path. The fake one finds its node above its own place.
    injected = install(node.root / "container/usr/lib/x86_64-linux-gnu")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(injected.parent))
    install(node.root / "usr/lib64")
    driver = Driver(node.root)

    answer = driver.read().answer
    driver.end()

    assert isinstance(answer, Gpus), answer
    assert answer.library == str(injected)


def test_nvml_library_of_the_host_replaces_an_invalid_injected_one(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.root / "container").mkdir()
    (node.root / "container" / SONAME).write_text("not a library\n" * 10)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(node.root / "container"))
    library = install(node.root / "usr/lib64")
    driver = Driver(node.root)

    answer = driver.read().answer
    driver.end()

    assert isinstance(answer, Gpus), answer
    assert answer.library == str(library)


def for_another_machine(path: Path) -> None:
    library = bytearray(nvml_library.build().read_bytes())
    struct.pack_into("<H", library, 18, MACHINES[ELSEWHERE])
    path.write_bytes(library)


def for_a_machine_without_a_name(path: Path) -> None:
    library = bytearray(nvml_library.build().read_bytes())
    struct.pack_into("<H", library, 18, 243)
    path.write_bytes(library)


def for_32_bits(path: Path) -> None:
    library = bytearray(nvml_library.build().read_bytes())
    library[4] = 1
    path.write_bytes(library)


def needing(library: str) -> Callable[[Path], None]:
    """A library with a missing dependency."""

    def put(path: Path) -> None:
        source, other = path.with_suffix(".c"), path.with_name(library)
        source.write_text("int nothing(void) { return 0; }\n")
        compiler = [*c_library.find_compiler(), "-shared", "-fPIC", "-nostdlib", str(source)]
        subprocess.run([*compiler, f"-Wl,-soname,{library}", "-o", str(other)], check=True)
        needs = ["-Wl,--no-as-needed", str(other), f"-Wl,-soname,{SONAME}"]
        subprocess.run([*compiler, *needs, "-o", str(path)], check=True)
        other.unlink()
        source.unlink()

    return put


def cut_off(path: Path) -> None:
    path.write_bytes(nvml_library.build().read_bytes()[:3000])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a library for another architecture": (
        for_another_machine,
        f"{{path}}: built for {ELSEWHERE}, but this machine is {HERE}",
    ),
    "a library for an architecture without a name": (
        for_a_machine_without_a_name,
        f"{{path}}: built for ELF machine 243, but this machine is {HERE}",
    ),
    "a library for 32 bits": (for_32_bits, "{path}: wrong ELF class: ELFCLASS32"),
    "a library built for musl": (
        needing(MUSL),
        f"{{path}}: {MUSL}: cannot open shared object file: No such file or directory (built for musl; this is glibc)",
    ),
    "a library that needs one that is not here": (
        needing("libnvidia-else.so.1"),
        "{path}: libnvidia-else.so.1: cannot open shared object file: No such file or directory",
    ),
    "a library that is still being copied": (cut_off, "{path}: cut off after 3000 of {size} bytes"),
    "a text file": (lambda path: path.write_text("GROUP ( libnvidia-ml.so )\n" * 9), "{path}: invalid ELF header"),
    "an empty file": (lambda path: path.touch(), "{path}: file too short"),
    "a folder": (lambda path: path.mkdir(), "{path}: cannot read file data: Is a directory"),
    "a dangling link": (
        lambda path: path.symlink_to(VERSIONED),
        "{path} leads to {root}/usr/lib64/" + VERSIONED + ": cannot open shared object file: No such file or directory",
    ),
    "an absolute link that only our own root has": (
        lambda path: path.symlink_to("/proc/self/exe"),
        "{path} leads to {root}/proc/self/exe: cannot open shared object file: No such file or directory",
    ),
    "a link out of the host's root": (
        lambda path: path.symlink_to("../../../../../../../../../etc/hostname"),
        "{path} leads to {root}/etc/hostname: cannot open shared object file: No such file or directory",
    ),
    "a link to itself": (lambda path: path.symlink_to(SONAME), "{path}: too many symbolic links"),
}


@pytest.mark.parametrize(("put", "message"), BAD.values(), ids=BAD)
def test_invalid_nvml_library_is_named(
    node: SimulatedNode, driver: Driver, put: Callable[[Path], object], message: str
) -> None:
    path = node.root / "usr/lib64" / SONAME
    path.parent.mkdir()
    put(path)

    answer = driver.read().answer
    child = driver.child_pid

    text = message.format(path=path, root=node.root, size=nvml_library.build().stat().st_size)
    assert answer == Unobserved(UnobservedCause.named("NvmlLibraryNotFound"), text)
    install(node.root / "opt/nvidia/lib64")
    assert isinstance(driver.read().answer, Gpus)
    assert driver.child_pid == child  # it never died


def test_invalid_nvml_library_behind_two_folders_is_reported_once(node: SimulatedNode, driver: Driver) -> None:
    path = node.root / "usr/lib64" / SONAME
    path.parent.mkdir()
    path.write_text("not a library\n" * 10)
    link(node.root, {"lib64": "usr/lib64"})

    assert driver.read().answer == Unobserved(
        UnobservedCause.named("NvmlLibraryNotFound"), f"{path}: invalid ELF header"
    )


def test_invalid_nvml_libraries_are_all_reported(node: SimulatedNode, driver: Driver) -> None:
    first, second = node.root / "usr/lib64" / SONAME, node.root / "opt/nvidia/lib64" / SONAME
    for path in (first, second):
        path.parent.mkdir(parents=True)
        path.touch()

    message = f"{first}: file too short; {second}: file too short"
    assert driver.read().answer == Unobserved(UnobservedCause.named("NvmlLibraryNotFound"), message)


def test_missing_nvml_library_names_both_search_paths(node: SimulatedNode) -> None:
    driver = Driver(node.root)

    answer = driver.read().answer
    driver.end()

    if isinstance(answer, Gpus):
        pytest.skip("this machine has a driver of its own")
    assert answer.cause.name == "NvmlLibraryNotFound"
    assert answer.detail.startswith(f"in the loader's own path: {SONAME}: ")
    assert f"; {SONAME} was not found under {node.root}: not in usr/lib64, " in answer.detail
