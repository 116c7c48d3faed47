"""dcgmi beside the node's engine: pairs of versions, and roots from which nothing is run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_healthcheck.healthcheck.checks.dcgm_diag import LEVEL_2
from gpu_healthcheck.healthcheck.checks.examine import judge, read_probes
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Host
from gpu_healthcheck.healthcheck.probes.dcgm.diag import Dcgm
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer
from gpu_healthcheck.healthcheck.probes.dcgm.engine import _CHROOT, NOT_STARTED, Engine, choose_engine, own_dcgmi
from gpu_healthcheck.sim import c_library
from gpu_healthcheck.sim.node import CHROOT, SimulatedNode
from tests.probes.dcgm.test_engine import OPERATORS, TENANTS, of_the_host, of_the_operator, start

HOST, ROOT = ".", "proc/4242/root"
ELSEWHERE = "opt/tenant"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    umask = os.umask(0o022)
    node = SimulatedNode.create(tmp_path / "node", "p5.48xlarge")
    yield node
    node.close()
    os.umask(umask)


def install(node: SimulatedNode, root: str, version: str, engine: str) -> Path:
    """Install dcgmi of this version in this root, for an engine of another version."""
    programs = node.install_dcgmi(root)
    node.write_value(f"{root}/dcgm/version", version)
    node.write_value(f"{root}/dcgm/engine-version", engine)
    return programs


def operators(node: SimulatedNode) -> Path:
    """Run the operator's engine with a dcgmi beside it, and return that program."""
    of_the_operator(node)
    return install(node, ROOT, "4.7.1", "4.7.1") / "dcgmi"


def diagnostic(node: SimulatedNode, host: str = "") -> Dcgm:
    engine = choose_engine(node.root, host, second_engine=False)
    return Dcgm(engine.host, path=f"{node.root / 'image/usr/bin'}:/bin", engine=engine, root=node.root)


def install_ours(node: SimulatedNode, version: str, engine: str) -> None:
    """Install the image's dcgmi, which reads its files in `image/dcgm`."""
    shutil.copy(CHROOT, install(node, "image", version, engine) / "chroot")


def outcome(node: SimulatedNode, host: str = "") -> tuple[str, list[str]]:
    """Return the version of the dcgmi whose answer counts, and the causes of a diagnostic without a result."""
    reading = diagnostic(node, host).run(2)
    assert isinstance(reading.answer, DiagAnswer), reading
    evidence = read_probes(Host(node.root, ask_dcgm=lambda _: reading), [LEVEL_2])
    (judged,) = judge([LEVEL_2], evidence, Expectation())
    assert judged.findings == ()
    assert bool(judged.passed) is not bool(judged.unobserved)
    return reading.answer.version, [unobserved.cause.name for unobserved in judged.unobserved]


VERSIONS = ("4.6.1", "4.7.0", "4.7.1")


@pytest.mark.parametrize("host", ["", "nvidia-dcgm.gpu-operator.svc:5555"])
@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("ours", VERSIONS)
def test_the_engines_own_dcgmi_runs_the_test_for_every_pair_of_versions(
    node: SimulatedNode, ours: str, engine: str, host: str
) -> None:
    of_the_operator(node)
    install_ours(node, ours, engine)
    install(node, ROOT, engine, engine)

    assert outcome(node, host) == (engine, [])


@pytest.mark.parametrize("engine", VERSIONS)
@pytest.mark.parametrize("ours", VERSIONS)
def test_our_dcgmi_runs_the_test_where_the_engine_has_none(node: SimulatedNode, ours: str, engine: str) -> None:
    """An image of the engine may lack the client, as distroless ones do."""
    of_the_operator(node)
    install_ours(node, ours, engine)

    refused = ours != engine and "4.7.1" in (ours, engine)
    assert outcome(node) == (ours, ["DcgmVersionMismatch"] if refused else [])


@pytest.mark.parametrize(
    ("own", "ours", "counts", "causes"),
    [("4.7.0", "4.7.1", "4.7.1", []), ("4.7.0", "4.6.1", "4.6.1", ["DcgmVersionMismatch"])],
)
def test_an_engine_that_refuses_its_own_dcgmi_is_asked_by_ours(
    node: SimulatedNode, own: str, ours: str, counts: str, causes: list[str]
) -> None:
    """Packages of two versions on one machine refuse each other (DCGM issue 314)."""
    of_the_operator(node)
    install_ours(node, ours, "4.7.1")
    install(node, ROOT, own, "4.7.1")

    assert outcome(node) == (counts, causes)


def test_the_hosts_dcgmi_asks_the_hosts_engine(node: SimulatedNode) -> None:
    of_the_host(node)
    install_ours(node, "4.6.1", "4.7.1")
    install(node, HOST, "4.7.1", "4.7.1")

    assert outcome(node) == ("4.7.1", [])


def test_our_own_engine_is_asked_by_our_dcgmi(node: SimulatedNode) -> None:
    install_ours(node, "4.6.1", "")
    install(node, HOST, "4.7.1", "4.7.1")

    assert outcome(node) == ("4.6.1", [])


def test_the_engines_dcgmi_gets_none_of_our_folders(node: SimulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")
    monkeypatch.setenv("NVVS_BIN_PATH", "/usr/libexec/ours")
    operators(node)
    install_ours(node, "4.6.1", "4.7.1")
    outcome(node)

    written = (node.root / ROOT / "dcgm/asked").read_text()
    assert "what=2 host=10.0.3.17:5555" in written
    assert "LD_LIBRARY_PATH" not in written
    assert "NVVS_BIN_PATH" not in written
    assert not (node.root / "image/dcgm/asked").exists()


def test_our_dcgmi_follows_an_engine_whose_user_is_refused(node: SimulatedNode) -> None:
    operators(node).write_text("#!/bin/sh\necho 'Error: permission denied'\nexit 239\n")
    install_ours(node, "4.7.1", "4.7.1")

    assert outcome(node) == ("4.7.1", [])


@pytest.mark.parametrize("code", NOT_STARTED)
def test_our_dcgmi_follows_an_engine_that_does_not_start(node: SimulatedNode, code: int) -> None:
    operators(node).write_text(f"#!/bin/sh\nexit {code}\n")
    install_ours(node, "4.7.1", "4.7.1")

    assert outcome(node) == ("4.7.1", [])
    assert (node.root / "image/dcgm/asked").exists()


def test_only_dcgmi_of_the_engines_own_folder_or_the_usual_one_is_run(node: SimulatedNode) -> None:
    program = operators(node)
    beside = node.root / ROOT / "opt/dcgm/bin"
    (node.root / "proc/4242/exe").symlink_to("/opt/dcgm/bin/nv-hostengine")
    assert command(node)[-1] == "/usr/bin/dcgmi"

    beside.mkdir(parents=True)
    shutil.copy(program, beside)
    assert command(node)[-1] == "/opt/dcgm/bin/dcgmi"


def test_links_lead_to_files_of_the_engines_root(node: SimulatedNode) -> None:
    program = operators(node)
    program.rename(program.with_name("dcgmi-4"))
    program.symlink_to("/usr/bin/dcgmi-4")

    assert command(node)[-1] == "/usr/bin/dcgmi-4"


def command(node: SimulatedNode, engine: Engine | None = None) -> tuple[str, ...]:
    with own_dcgmi(node.root, engine or choose_engine(node.root, "", second_engine=False)) as words:
        return words


def test_the_program_runs_without_rights_in_the_engines_root(node: SimulatedNode) -> None:
    operators(node)

    words = command(node)
    assert words[:3] == ("chroot", "--userspec=+65534:+65534", "--groups=")
    assert words[3].startswith(f"/proc/{os.getpid()}/fd/")


def writable_by_others(node: SimulatedNode, program: Path) -> None:
    program.chmod(0o757)


def in_a_folder_writable_by_a_group(node: SimulatedNode, program: Path) -> None:
    program.parent.chmod(0o775)


def in_a_root_writable_by_others(node: SimulatedNode, program: Path) -> None:
    (node.root / ROOT).chmod(0o777)


def that_sets_the_user_id(node: SimulatedNode, program: Path) -> None:
    program.chmod(0o4755)


def that_is_no_program(node: SimulatedNode, program: Path) -> None:
    program.chmod(0o644)


def that_is_a_pipe(node: SimulatedNode, program: Path) -> None:
    program.unlink()
    os.mkfifo(program)


def that_is_absent(node: SimulatedNode, program: Path) -> None:
    program.unlink()


def that_is_a_loop_of_links(node: SimulatedNode, program: Path) -> None:
    program.unlink()
    program.symlink_to("dcgmi")


def of_another_user(node: SimulatedNode, program: Path) -> None:
    if os.getuid():
        pytest.skip("only root changes owners")
    os.chown(program, 1000, 1000)


def in_a_folder_of_another_user(node: SimulatedNode, program: Path) -> None:
    if os.getuid():
        pytest.skip("only root changes owners")
    os.chown(program.parent, 1000, 1000)


def of_an_engine_without_roots_rights(node: SimulatedNode, program: Path) -> None:
    status = node.root / "proc/4242/status"
    status.write_text(status.read_text().replace("Uid:\t0\t0\t0\t0", "Uid:\t0\t1000\t0\t0"))


def of_an_engine_with_hidden_rights(node: SimulatedNode, program: Path) -> None:
    status = node.root / "proc/4242/status"
    status.write_text("Name:\tnv-hostengine\n")


def of_an_engine_with_its_own_users(node: SimulatedNode, program: Path) -> None:
    users = node.root / "proc/4242/ns/user"
    users.unlink()
    users.symlink_to("user:[4026533333]")


def of_an_engine_with_hidden_users(node: SimulatedNode, program: Path) -> None:
    (node.root / "proc/4242/ns/user").unlink()


def of_a_root_that_is_a_link_to_anywhere(node: SimulatedNode, program: Path) -> None:
    """Only the kernel's own link leads into another mount namespace."""
    root = node.root / ROOT
    root.rename(node.root / ELSEWHERE.rpartition("/")[2])
    root.symlink_to(node.root / ELSEWHERE.rpartition("/")[2])


def of_an_engine_that_ended(node: SimulatedNode, program: Path) -> None:
    (node.root / "proc/4242/stat").unlink()


@pytest.mark.parametrize(
    "state",
    [
        writable_by_others,
        in_a_folder_writable_by_a_group,
        in_a_root_writable_by_others,
        that_sets_the_user_id,
        that_is_no_program,
        that_is_a_pipe,
        that_is_absent,
        that_is_a_loop_of_links,
        of_another_user,
        in_a_folder_of_another_user,
        of_an_engine_without_roots_rights,
        of_an_engine_with_hidden_rights,
        of_an_engine_with_its_own_users,
        of_an_engine_with_hidden_users,
        of_a_root_that_is_a_link_to_anywhere,
        of_an_engine_that_ended,
    ],
)
def test_program_writable_by_others_is_not_run(
    node: SimulatedNode, state: Callable[[SimulatedNode, Path], None]
) -> None:
    program = operators(node)
    engine = choose_engine(node.root, "", second_engine=False)
    assert command(node, engine)

    state(node, program)

    assert command(node, engine) == ()


def test_a_tenants_root_is_never_used(node: SimulatedNode) -> None:
    """A tenant gives its process the engine's name, the usual port and a dcgmi."""
    start(node, 4400, "nv-hostengine", TENANTS)
    node.services.listen(4400, "0.0.0.0", 5555, "net:[4026532998]")
    install(node, "proc/4400/root", "4.7.1", "4.7.1")

    assert command(node) == ()
    assert command(node, Engine("10.0.3.17:5555", 4400)) == ()


def test_a_process_that_took_over_the_engines_number_is_not_used(node: SimulatedNode) -> None:
    operators(node)
    engine = choose_engine(node.root, "", second_engine=False)
    node.services.end_process(4242)
    start(node, 4242, "nv-hostengine", TENANTS, privileged=False)
    install(node, ROOT, "4.7.1", "4.7.1")

    assert command(node, engine) == ()


def test_a_host_process_chooses_only_among_files_of_root(node: SimulatedNode) -> None:
    """A user of the host names a process nv-hostengine; the program beside it belongs to that user."""
    of_the_host(node)
    pid = node.services.pid_of("nv-hostengine")
    home = node.root / "home/user"
    home.mkdir(parents=True)
    shutil.copy(install(node, HOST, "4.7.1", "4.7.1") / "dcgmi", home)
    home.chmod(0o777)
    (node.root / f"proc/{pid}/exe").symlink_to("/home/user/nv-hostengine")

    assert command(node)[3:] == (str(node.root), "/usr/bin/dcgmi")


def test_the_pod_of_an_engine_is_proven_again_before_each_run(node: SimulatedNode) -> None:
    operators(node)
    engine = choose_engine(node.root, "", second_engine=False)
    shutil.rmtree(node.root / f"var/log/pods/gpu-operator_nvidia-dcgm-x7k2p_{OPERATORS}")

    assert command(node, engine) == ()


@pytest.mark.skipif(os.getuid() != 0, reason="only root changes the root of a process")
def test_chroot_leaves_a_program_no_rights_and_no_way_to_our_files(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    source, program = tmp_path / "dcgmi.c", tmp_path / "usr/bin/dcgmi"
    source.write_text(_RIGHTS)
    compiler = c_library.find_compiler()
    target = [f"--target={platform.machine()}-linux-musl"] if "ziglang" in compiler else []
    subprocess.run([*compiler, *target, "-static", "-o", program, source], check=True)
    tmp_path.chmod(0o755)
    top = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        words = [*_CHROOT, f"/proc/{os.getpid()}/fd/{top}", "/usr/bin/dcgmi"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    finally:
        os.close(top)

    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["65534", "65534", "0", "0", "/", "-1"], "")


_RIGHTS = """
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    unsigned head[2] = {0x20080522, 0}, sets[6] = {0};
    char folder[64];
    syscall(SYS_capget, head, sets);
    printf("%d %d %d %u %s %d\\n", geteuid(), getegid(), getgroups(0, NULL), sets[0] | sets[3],
           getcwd(folder, sizeof folder), access("/etc/passwd", F_OK));
    return 0;
}
"""
