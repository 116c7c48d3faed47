"""The runtime's own loader: which process is started again, and what the real containerds say of files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks import container_runtime, runtime_type
from gpu_healthcheck.healthcheck.host.command import ProgramEnd
from gpu_healthcheck.healthcheck.probes.container_runtime import nvidia_definitions, processes
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    CONTAINERD,
    CRIO,
    DOCKER,
    ContainerRuntime,
    RuntimeAnswer,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.loader import Loader, _answer
from gpu_healthcheck.sim.containerd import RELEASES, RunningContainerd
from tests.checks.runtimes import judge, reasons
from tests.waiting import eventually

HOST, FILE = Path("/"), "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
OF_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="processes of root, and network namespaces")


def since_boot(pid: int) -> float | None:
    return processes._state(Path(f"/proc/{pid}/stat").read_bytes())[1]


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose program runs the command in `flags`."""
    with subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE) as process:
        yield process


def asked(process: subprocess.Popen[bytes], script: str, **more: object) -> RuntimeAnswer:
    facts = ContainerRuntime(FILE, pid=process.pid, since_boot=since_boot(process.pid), flags=("-c", script))
    return Loader(HOST, deadline_seconds=1.0).load(replace(facts, **more))


@OF_ROOT
def test_loader_runs_with_the_runtimes_name_and_without_environment_or_network(
    shell: subprocess.Popen[bytes],
) -> None:
    script = 'echo "$0 $* $(env | cut -d= -f1 | tr "\\n" " ") $(tail -n +3 /proc/net/dev | cut -d: -f1)" >&2; exit 3'
    answer = asked(shell, script)
    program, _, rest = answer.why_not_loaded.removeprefix("its loader could not be asked: exit code 3: ").partition(" ")
    assert program == "config"
    assert {*rest.split()} <= {"dump", "PWD", "OLDPWD", "SHLVL", "_", "lo"}


@OF_ROOT
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 0", ""),
        ("sleep 9", "no end within 1 s"),
        ("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done", "its output is longer than"),
        ("echo [", "could not be asked"),
        ("echo 'containerd: a' >&2; exit 2", "exit code 2: containerd: a"),
        ("echo a >&2; exit 1", "exit code 1: a"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_loader_that_neither_prints_nor_refuses_could_not_be_asked(
    script: str, message: str, shell: subprocess.Popen[bytes]
) -> None:
    answer = asked(shell, script)
    assert answer.refusal is None
    assert (message in answer.why_not_loaded) if message else answer.on_disk is not None


@OF_ROOT
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"pid": 0}, "its process is not visible"),
        ({"since_boot": 1.0}, "is not known to run as root of the host, outside of pods"),
        ({"since_boot": None}, "is not known to run as root of the host, outside of pods"),
        ({"kind": DOCKER}, "Docker has none"),
        ({"pid": 1 << 22}, "No such file or directory"),
    ],
)
def test_another_process_is_not_started_again(
    more: dict[str, object], message: str, shell: subprocess.Popen[bytes]
) -> None:
    assert message in asked(shell, "echo 'containerd: a' >&2; exit 1", **more).why_not_loaded


@OF_ROOT
def test_process_of_another_user_is_not_started_again() -> None:
    with subprocess.Popen(["setpriv", "--reuid=65534", "sh", "-c", "read line"], stdin=subprocess.PIPE) as process:
        eventually(lambda: "Uid:\t65534" in Path(f"/proc/{process.pid}/status").read_text())
        answer = asked(process, "exit 0")
    assert "is not known to run as root" in answer.why_not_loaded


def test_process_of_a_captured_tree_is_not_started(tmp_path: Path) -> None:
    folder = tmp_path / "proc/901"
    (folder / "ns").mkdir(parents=True)
    (folder / "ns/mnt").symlink_to("mnt:[4026531841]")
    (folder / "exe").symlink_to("/bin/sh")
    answer = Loader(tmp_path).load(ContainerRuntime(FILE, pid=901, since_boot=1.0))
    assert "is not known to run as root" in answer.why_not_loaded


REFUSALS = {
    "containerd 1, file and position": (
        CONTAINERD,
        b"containerd: failed to load TOML: /a/c.toml: (3, 2): unexpected token\n",
        ("/a/c.toml", "failed to load TOML: /a/c.toml: (3, 2): unexpected token", 3, 2),
    ),
    "containerd 1, a position without a file": (
        CONTAINERD,
        b"containerd: failed to unmarshal TOML: (3, 1): Can't convert\n",
        (FILE, "failed to unmarshal TOML: (3, 1): Can't convert", 0, 0),
    ),
    "containerd 2": (
        CONTAINERD,
        (
            b'time="x" level=error msg="Failure unmarshaling TOML" column=9 file=/a/c.toml row=3\n'
            b"containerd: failed to unmarshal TOML at row 3 column 9: toml: expected character ]\n"
        ),
        ("/a/c.toml", "failed to unmarshal TOML at row 3 column 9: toml: expected character ]", 3, 9),
    ),
    "CRI-O": (
        CRIO,
        b'time="x" level=fatal msg="unable to decode configuration /etc/crio/crio.conf: toml: line 7: expected"\n',
        ("/etc/crio/crio.conf", "unable to decode configuration /etc/crio/crio.conf: toml: line 7: expected", 7, 0),
    ),
}


@pytest.mark.parametrize(("kind", "errors", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_refusal_has_the_loaders_words_and_position(
    kind: str, errors: bytes, expected: tuple[str, str, int, int]
) -> None:
    facts = ContainerRuntime(
        FILE, kind, files=tuple(nvidia_definitions.with_times(HOST, ["/etc/passwd", "/etc/group"]))
    )
    problem = _answer(facts, ProgramEnd(1, b"", errors)).refusal
    assert problem is not None
    assert (problem.file, problem.message, problem.line, problem.column) == expected


CRIOS = b"""[crio]
# root = "/var/lib/containers"
[crio.runtime]
default_runtime = "nvidia"
cdi_spec_dirs = ["/etc/cdi"]
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
runtime_type = "oci"
"""


def test_configuration_of_cri_o_is_read_from_its_own_output() -> None:
    files = _answer(ContainerRuntime("/etc/crio/crio.conf", CRIO), ProgramEnd(0, CRIOS, b"")).on_disk
    assert files is not None
    assert [(one.name, one.binary) for one in files.handlers] == [("nvidia", "/usr/bin/nvidia-container-runtime")]
    assert (files.default, files.cdi, files.cdi_folders) == ("nvidia", True, ("/etc/cdi",))


# Real containerds.

V2, V3 = 'plugins."io.containerd.grpc.v1.cri"', 'plugins."io.containerd.cri.v1.runtime"'


def root_file(version: int) -> str:
    section = V2 if version == 2 else V3
    return (
        f'version = {version}\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
        f'[{section}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    )


def drop_in(version: int, kind: str = 'runtime_type = "io.containerd.runc.v2"\n') -> str:
    section = V2 if version == 2 else V3
    table = f"[{section}.containerd.runtimes.nvidia]\n{kind}"
    return f'version = {version}\n{table}[{section}.containerd.runtimes.nvidia.options]\nBinaryName = "/n"\n'


ALL = frozenset(RELEASES)
TREES: dict[str, tuple[dict[str, str], frozenset[str], frozenset[str]]] = {
    "2 and 2": ({"config.toml": root_file(2), "conf.d/99-nvidia.toml": drop_in(2)}, ALL, frozenset()),
    "3 and 3": ({"config.toml": root_file(3), "conf.d/99-nvidia.toml": drop_in(3)}, ALL - {"1.7"}, frozenset()),
    "4 and 4": (
        {"config.toml": root_file(4), "conf.d/99-nvidia.toml": drop_in(4)},
        frozenset(("2.3", "2.4")),
        frozenset(),
    ),
    "4 and 3": ({"config.toml": root_file(4), "conf.d/99-nvidia.toml": drop_in(3)}, ALL - {"1.7"}, frozenset()),
    "2 and 3": (
        {"config.toml": root_file(2), "conf.d/99-nvidia.toml": drop_in(3)},
        frozenset(("2.2", "2.4")),
        frozenset(),
    ),
    "2 and 4": ({"config.toml": root_file(2), "conf.d/99-nvidia.toml": drop_in(4)}, frozenset(("2.4",)), frozenset()),
    "3 and 4": ({"config.toml": root_file(3), "conf.d/99-nvidia.toml": drop_in(4)}, frozenset(("2.4",)), frozenset()),
    "2 and 2 without a type": ({"config.toml": root_file(2), "conf.d/99-nvidia.toml": drop_in(2, "")}, ALL, ALL),
    "3 and 3 without a type": (
        {"config.toml": root_file(3), "conf.d/99-nvidia.toml": drop_in(3, "")},
        ALL - {"1.7"},
        ALL - {"1.7"},
    ),
    "a root without a version": (
        {"config.toml": root_file(3).partition("\n")[2], "conf.d/99-nvidia.toml": drop_in(3)},
        ALL - {"1.7"},
        frozenset(),
    ),
    "no TOML": ({"config.toml": "version = 2\n\n[plugins\n"}, frozenset(), frozenset()),
    "Docker's file": ({"config.toml": 'disabled_plugins = ["cri"]\n'}, ALL, frozenset()),
    "no such import": ({"config.toml": 'version = 2\nimports = ["gone.toml"]\n'}, frozenset(), frozenset()),
}
"""Files, the releases whose loader accepts them, and those that start no sandbox with the handler."""


@pytest.fixture(scope="module", params=RELEASES)
def containerd(
    request: pytest.FixtureRequest, real_containerd: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RunningContainerd]]:
    program, root = real_containerd(request.param), tmp_path_factory.mktemp("node") / "root"
    with RunningContainerd(program, root) as running:
        assert running.start({"config.toml": "version = 2\n"})
        yield request.param, running


def facts_of(containerd: RunningContainerd) -> ContainerRuntime:
    """The facts of the running containerd and its files, with the answer of its loader."""
    pid = containerd.pid
    files, missing = nvidia_definitions.files_of(containerd.root, FILE, CONTAINERD)
    facts = ContainerRuntime(
        FILE,
        pid=pid,
        since_boot=since_boot(pid),
        files=tuple(nvidia_definitions.with_times(containerd.root, files)),
        missing_imports=tuple(missing),
        definitions=tuple(nvidia_definitions.definitions(containerd.root, files, FILE, CONTAINERD)),
        for_gpus=True,
    )
    answer = Loader(HOST).load(facts)
    assert not answer.why_not_loaded
    return replace(facts, on_disk=answer.on_disk, refusal=answer.refusal)


@OF_ROOT
@pytest.mark.parametrize("name", TREES)
def test_real_loader_judges_the_files(name: str, containerd: tuple[str, RunningContainerd]) -> None:
    (release, running), (files, accepting, typeless) = containerd, TREES[name]
    running.put(files)

    facts = facts_of(running)

    assert (facts.on_disk is not None) == (release in accepting), facts.refusal
    malformed = "RuntimeConfigMalformed" in reasons(judge(container_runtime.CHECK, facts))
    assert malformed == (release not in accepting)
    assert ("RuntimeTypeMissing" in reasons(judge(runtime_type.CHECK, facts))) == (release in typeless)
    if facts.refusal is not None and name == "no TOML":
        assert (facts.refusal.file, facts.refusal.line) == (FILE, 3)
    if facts.refusal is not None and name in ("2 and 4", "3 and 4"):
        assert "version" in facts.refusal.message


@OF_ROOT
def test_table_that_a_release_does_not_read_is_misplaced(containerd: tuple[str, RunningContainerd]) -> None:
    release, running = containerd
    running.put({"config.toml": root_file(3), "conf.d/99-nvidia.toml": drop_in(2)})

    found = judge(container_runtime.CHECK, facts_of(running))

    assert reasons(found) == (["RuntimeConfigMisplaced"] if release == "2.2" else [])
