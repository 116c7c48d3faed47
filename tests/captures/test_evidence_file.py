"""The file of evidence: it restores the same cycle, and other files are rejected with place and reason."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.captures import evidence_file
from gpu_healthcheck.healthcheck.captures.evidence_file import EvidenceCycle, EvidenceError
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import Evidence, Probe, Severity, Threshold, Unobserved, UnobservedCause
from gpu_healthcheck.healthcheck.model.node_facts import (
    DeepDiagnostic,
    EarlierHardware,
    GpuPosition,
    PodRuntimeClass,
    RdmaPort,
)
from gpu_healthcheck.healthcheck.probes.container_runtime.configuration import CONTAINER_RUNTIME
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import (
    ContainerRuntime,
    Handler,
    Live,
    RuntimeConfiguration,
)
from gpu_healthcheck.healthcheck.probes.dcgm.diag import LEVEL_2_RUN, DcgmReading
from gpu_healthcheck.healthcheck.probes.dcgm.diag_answer import DiagAnswer
from gpu_healthcheck.healthcheck.probes.efa.infiniband import RDMA
from gpu_healthcheck.healthcheck.probes.efa.libfabric import LIBFABRIC, LibfabricReading, Listing
from gpu_healthcheck.healthcheck.probes.efa.loopback import EFA_LOOPBACK
from gpu_healthcheck.healthcheck.probes.kernel_log import RING, Record
from gpu_healthcheck.healthcheck.probes.loopback import Broken, Loopback, LoopbackReading, Measured
from gpu_healthcheck.healthcheck.probes.mlx5 import MLX5, Mlx5
from gpu_healthcheck.healthcheck.probes.nccl import ALL_REDUCE, AllReduceReading, Failed, Reduced
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import (
    ADDRESSES,
    P5,
    driver_is_silent,
    driver_says,
    efa_functions,
    every,
    functions,
    healthy,
    mlx5_device,
    rdma,
)
from tests.examples import BOOT, MACHINE, NODE, NOW

PROBES = list(dict.fromkeys(probe for check in CHECKS for probe in check.needs))
NO_LOG = Unobserved(UnobservedCause.named("ProbeFailed"), "kernel-log: Permission denied")
SEEN: dict[Probe[Any], Any] = {
    NVML: driver_says(*every(), healthy(0, errors={"ecc": 999}, recovery_action=2)),
    FUNCTIONS: functions(*ADDRESSES) + efa_functions(31),
    RDMA: rdma(31, mlx5=2),
    MLX5: Mlx5((mlx5_device(0), mlx5_device(1, state="1: DOWN")), holders=None, exclusive=True),
    RING: (Record(7, 12.5, 0, "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus. \ufffd \x1b[31m"),),
}
EXPECTED = replace(
    P5,
    driver_age_seconds=321.5,
    policy=Policy(
        *({"GpuCountLow": Severity.MONITOR}, Severity.REBOOT, Severity.RESET),
        strict_pshc=True,
        thresholds={"Xid43": Threshold(Severity.RESET, 3, 600)},
    ),
    first=EarlierHardware(
        32,
        {ADDRESSES[0]: GpuPosition(1, "0000:51:00.0")},
        rdma={"0000:5e:00.0": RdmaPort("mlx5_3", "1021 MT_0000000838 InfiniBand", 400.0, (12.5,), (1.0, 2.0))},
    ),
    efa_allocatable=31,
    runtime_classes=(PodRuntimeClass("nvidia", "nvidia", for_this_node=True), PodRuntimeClass("kata", "kata", False)),
    deep_run=DeepDiagnostic("l2", 49_000.0, 49_500.5, {812: 49_400.0}),
)


def look(expected: Expectation = EXPECTED, **more: Any) -> EvidenceCycle:
    evidence = Evidence(SEEN, 50_010.5, Evidence(SEEN | {RING: NO_LOG}, 50_000.25), {"nvml": 0.25})
    return replace(EvidenceCycle(NODE, MACHINE, BOOT, NOW, CHECKS, expected, 60.0, evidence), **more)


def text_of(tmp_path: Path, cycle: EvidenceCycle) -> dict[str, Any]:
    evidence_file.write(tmp_path / "evidence.json", cycle)
    document: dict[str, Any] = json.loads((tmp_path / "evidence.json").read_text())
    return document


def saved_and_read(tmp_path: Path, cycle: EvidenceCycle) -> EvidenceCycle:
    evidence_file.write(tmp_path / "evidence.json", cycle)
    return evidence_file.read((tmp_path / "evidence.json").read_bytes())


def facts(evidence: Evidence) -> dict[str, Any]:
    return {probe.name: evidence.unread(probe) or evidence[probe] for probe in evidence.probes}


REPORT_OF_0_3_0: dict[str, Any] = {
    "name": "containerd",
    "version": "1.7.20",
    "handlers": ["runc", "nvidia"],
    "binaries": [["nvidia", "/usr/bin/nvidia-container-runtime"]],
    "systemd_cgroups": [["runc", True]],
    "default": "runc",
    "cdi": False,
}


def test_runtime_report_of_0_3_0_is_read_with_its_handlers(tmp_path: Path) -> None:
    cycle = look(evidence=Evidence({CONTAINER_RUNTIME: ContainerRuntime("/c", live=Live())}, 1.0))
    document = text_of(tmp_path, cycle) | {"schema": 1}
    document["look"]["probes"]["container-runtime"]["facts"]["live"] = REPORT_OF_0_3_0

    read = evidence_file.read(json.dumps(document).encode()).evidence[CONTAINER_RUNTIME]

    handlers = (Handler("runc", systemd_cgroup=True), Handler("nvidia", binary="/usr/bin/nvidia-container-runtime"))
    assert read.live is not None
    assert read.live.configuration == RuntimeConfiguration(handlers, default="runc", cdi=False)


@pytest.mark.parametrize("handlers", [[["runc"]], [7, None]])
def test_malformed_runtime_report_of_0_3_0_is_an_error(tmp_path: Path, handlers: object) -> None:
    cycle = look(evidence=Evidence({CONTAINER_RUNTIME: ContainerRuntime("/c", live=Live())}, 1.0))
    document = text_of(tmp_path, cycle) | {"schema": 1}
    document["look"]["probes"]["container-runtime"]["facts"]["live"] = {"handlers": handlers}

    with pytest.raises(evidence_file.EvidenceError):
        evidence_file.read(json.dumps(document).encode())


def test_cycle_is_read_as_it_was_written(tmp_path: Path) -> None:
    saved = look()
    read = saved_and_read(tmp_path, saved)

    assert replace(read, evidence=saved.evidence) == saved
    assert (facts(read.evidence), read.evidence.at) == (facts(saved.evidence), 50_010.5)
    assert read.evidence.seconds["nvml"] == 0.25
    assert read.evidence.before is not None
    assert facts(read.evidence.before)["kernel-log"] == NO_LOG
    assert read.evidence.earlier(NVML) == (SEEN[NVML], 10.25)


def without_kinds(value: Any) -> Any:
    if isinstance(value, list):
        return [without_kinds(entry) for entry in value]
    if isinstance(value, dict):
        return {key: without_kinds(entry) for key, entry in value.items() if key != "type"}
    return value


PINGED = (
    Measured(11_000.0, 1 << 20),
    Broken("lost"),
    Unobserved(UnobservedCause.named("EfaTestNotRun"), "no fi_pingpong"),
)
ANSWERED: list[tuple[Probe[Any], Any]] = [
    (NVML, SEEN[NVML]),
    (NVML, driver_is_silent(Unobserved(UnobservedCause.named("DriverHung"), "no answer in 20 s"))),
    (LIBFABRIC, LibfabricReading(Listing(("rdmap16s0",), 0, ("rdmap16s0",)))),
    (LEVEL_2_RUN, DcgmReading(DiagAnswer(226, 2, documents=1))),
    (ALL_REDUCE, AllReduceReading(Reduced(8, 470.5, 0))),
    (ALL_REDUCE, AllReduceReading(Failed("NCCL WARN Cuda failure"))),
    (
        EFA_LOOPBACK,
        LoopbackReading(tuple(Loopback("rdmap16s0", one) for one in PINGED)),
    ),
]


@pytest.mark.parametrize(("probe", "answer"), ANSWERED)
def test_answer_keeps_its_type(probe: Probe[Any], answer: Any, tmp_path: Path) -> None:
    """Also of a file from before 0.3, which lacks the type of an answer."""
    document = text_of(tmp_path, look(evidence=Evidence({probe: answer}, 1.0)))
    for entry in (document, without_kinds(document)):
        assert evidence_file.read(json.dumps(entry).encode()).evidence[probe] == answer


def test_file_is_plain_json_with_an_unlimited_expectation_as_null(tmp_path: Path) -> None:
    document = text_of(tmp_path, look(Expectation()))

    assert list(document)[:3] == ["format", "schema", "agent_version"]
    assert document["expected"]["driver_age_seconds"] is None
    assert evidence_file.read(json.dumps(document).encode()).expected == Expectation()
    assert document["look"]["probes"]["infiniband"]["facts"]["devices"][0]["name"] == "rdmap16s0"


def by_its_name(kind: type) -> dict[str, Any]:
    """A cause; of anything else that is no plain data there is no schema."""
    if kind is UnobservedCause:
        return {"type": "string"}
    raise NotImplementedError(kind)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_facts_of_each_probe_are_plain_data(probe: Probe[Any]) -> None:
    """Types that JSON can represent, from the declaration of the probe."""
    schema = json.dumps(msgspec.json.schema(probe.facts, schema_hook=by_its_name))

    assert '"contentEncoding"' not in schema  # bytes


def test_file_is_replaced_for_its_owner_or_stays_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evidence.json"
    path.write_text("an old one")
    path.chmod(0o644)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EvidenceError, match="No space left on device"):
        evidence_file.write(path, look())

    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("evidence.json", "an old one")]
    monkeypatch.undo()
    evidence_file.write(path, look())
    assert [(file.name, stat.S_IMODE(file.stat().st_mode)) for file in tmp_path.iterdir()] == [("evidence.json", 0o600)]


def test_name_that_is_not_utf_8_is_written(tmp_path: Path) -> None:
    """A tree somewhere else than / may hold any name."""
    odd = rdma(1)
    odd = replace(odd, devices=(replace(odd.devices[0], name="rdma\udcff"),))

    assert saved_and_read(tmp_path, look(evidence=Evidence({RDMA: odd}, 1.0))).evidence[RDMA].devices[0].name == "rdma?"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/evidence.json", "missing: no such directory"),
        ("folder", "folder: it exists, but is not a file"),
        ("/dev/null", "/dev/null: it exists, but is not a file"),
        ("/sys/evidence.json", "/sys"),
        ("x" * 300, "File name too long"),
        ("-", "evidence can't be written to standard output: name a file"),
        ("old", ""),
        ("new", ""),
    ],
)
def test_path_that_cannot_be_written_is_refused_before_the_cycle(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").write_text("")
    path = Path(name) if name == "-" else tmp_path / name

    message = evidence_file.why_not(path)
    if name.startswith("/sys") and not message:  # root on a /sys that is mounted for writing
        with pytest.raises(EvidenceError, match="/sys"):
            evidence_file.write(path, look())
    else:
        assert (why in message, bool(why)) == (True, bool(message))


def changed(document: dict[str, Any], *path: Any, to: Any) -> bytes:
    """The document with another value there."""
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["format"], "a diary", 'not an evidence file: it does not begin with "format": "gpu-healthcheck evidence"'),
        (["schema"], 3, "schema 3; this version reads 1 and 2"),
        (["schema"], 0, "schema 0; this version reads 1 and 2"),
        (["schema"], True, "schema True; this version reads 1 and 2"),
        (["schema"], None, "schema None; this version reads 1 and 2"),
        (["wall"], "yesterday", "wall: Invalid RFC3339 encoded datetime"),
        (["wall"], "2026-11-21T01:02:03", "wall: Expected datetime with a timezone component"),
        (["wall"], "0001-01-01T00:00:00+14:00", "wall: only the years from 1970 to 9998 are supported"),
        (["wall"], "9999-01-01T00:00:00Z", "wall: only the years from 1970 to 9998 are supported"),
        (["checks"], [], "checks: the list is empty"),
        (["checks"], ["gpu-count", "gpu-colour"], "checks: 'gpu-colour' is not a check of this version"),
        (["expected"], [], "expected: Expected object, got array"),
        (["expected", "profile"], {}, "expected.profile: Object missing required field instance_type"),
        (["expected", "policy", "overrides"], {"Xid79": 9}, "expected.policy.overrides[...]: Invalid enum value 9"),
        (["look"], None, "look: Expected object, got null"),
        (["look", "at"], "x", "look.at: Expected float, got str"),
        (["look", "probes", "pci", "facts", 3, "vendor"], "x", "look.probes.pci.facts[3].vendor: Expected int"),
        (["look", "probes", "nvml", "facts"], None, "look.probes.nvml.facts: Expected object, got null"),
        (["look", "probes", "nvml"], {"unread": {}}, "look.probes.nvml.unread: Object missing required field cause"),
        (["before", "probes", "pci", "facts"], 7, "before.probes.pci.facts: Expected array, got int"),
    ],
)
def test_invalid_value_is_reported_with_its_path(path: list[Any], value: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as error:
        evidence_file.read(changed(text_of(tmp_path, look()), *path, to=value))

    assert str(error.value).startswith(why)


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[]", b"7", b"{", b"\xff", b"[" * 100_000, b'{"format": NaN}', b'{"schema": 1}', b"\x00" * 4096],
)
def test_other_file_is_refused(raw: bytes) -> None:
    with pytest.raises(EvidenceError, match=r"not (JSON|an evidence file)"):
        evidence_file.read(raw)


def test_file_above_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evidence_file, "MOST_EVIDENCE", 1 << 10)

    with pytest.raises(EvidenceError, match="more than 0 MiB"):
        evidence_file.read(b" " * 1025)
    with pytest.raises(EvidenceError, match="of evidence; at most"):
        evidence_file.write(tmp_path / "evidence.json", look())


def test_key_of_another_version_is_ignored(tmp_path: Path) -> None:
    document = text_of(tmp_path, look())
    document["colour"] = document["look"]["probes"]["nvml"]["facts"]["colour"] = "red"
    document["look"]["probes"]["thermometer"] = {"facts": [1, 2, 3]}

    assert facts(evidence_file.read(json.dumps(document).encode()).evidence) == facts(look().evidence)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("DriverLibraryMismatch", "DriverLibraryMismatch"),
        ("\x1b[2J", "\\x1b[2J"),
        ("x" * 999, "x" * 63 + "…"),
        ("", ""),
    ],
    ids=["another version's", "a stranger's", "long", "none"],
)
def test_undeclared_cause_is_read_by_its_name(tmp_path: Path, name: str, shown: str) -> None:
    document = text_of(tmp_path, look())
    document["look"]["probes"]["pci"] = {"unread": {"cause": name, "detail": "why"}}
    document["look"]["probes"]["nvml"]["facts"]["answer"] = {"cause": name, "detail": "why"}

    evidence = evidence_file.read(json.dumps(document).encode()).evidence
    why = Unobserved(UnobservedCause.named(name), "why")
    assert (evidence.unread(FUNCTIONS), evidence[NVML].answer, why.cause.name) == (why, why, shown)


def test_missing_source_counts_as_not_read(tmp_path: Path) -> None:
    document = text_of(tmp_path, look())
    del document["look"]["probes"]["pci"]

    assert evidence_file.read(json.dumps(document).encode()).evidence.unread(FUNCTIONS) == Unobserved(
        UnobservedCause.named("NotLooked"), "pci was not read"
    )
