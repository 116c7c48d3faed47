"""A way for a GPU into a pod, and where it is when it is not in the kubelet's own container runtime."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from healthcheck.checks.nvidia_runtime import CHECK
from healthcheck.checks.runtime_fixes import give_handler
from healthcheck.model import Finding, Observation
from healthcheck.probes.container_runtime.distributions import GKE
from healthcheck.probes.container_runtime.facts import (
    CRIO,
    DOCKER,
    ConfigurationProblem,
    Handler,
    Live,
    Misplaced,
    RuntimeConfiguration,
)
from tests.checks.runtimes import (
    AKS,
    DROP_IN,
    FILE,
    MEND,
    NVIDIA,
    OFFERED,
    RUNC,
    SPEC,
    configuration,
    finding,
    judge,
    reasons,
    runtime,
    seen,
)

GIVE = give_handler(runtime(RUNC), configuration(RUNC))


@pytest.mark.parametrize(
    "handlers",
    [
        (RUNC, NVIDIA),
        (NVIDIA,),
        (RUNC, replace(NVIDIA, name="nvidia-cdi")),
        (RUNC, AKS),
        (RUNC, replace(NVIDIA, name="gpu")),
        (RUNC, NVIDIA, OFFERED),
    ],
)
def test_a_handler_of_nvidias_is_enough(handlers: tuple[Handler, ...]) -> None:
    assert judge(CHECK, runtime(*handlers)) == []


@pytest.mark.parametrize("handlers", [(), (RUNC,), (RUNC, Handler("gvisor", "io.containerd.runsc.v1", "", None, FILE))])
def test_without_any_it_is_found(handlers: tuple[Handler, ...]) -> None:
    assert judge(CHECK, runtime(*handlers)) == [finding("NvidiaRuntimeMissing", f"{FILE}: {GIVE}")]


@pytest.mark.parametrize(
    ("name", "binary"),
    [
        ("Nvidia", ""),
        ("nvidia2", ""),
        ("runc", ""),
        ("runc", "/usr/bin/nvidia"),
        ("x", "/opt/nvidia-container-runtime/runc"),
    ],
)
def test_a_name_that_is_only_like_it_is_none(name: str, binary: str) -> None:
    assert reasons(judge(CHECK, runtime(replace(RUNC, name=name, binary=binary)))) == ["NvidiaRuntimeMissing"]


@pytest.mark.parametrize(
    ("cdi", "specs", "well"),
    [
        (True, (SPEC,), True),
        (False, (SPEC,), False),
        (True, (), False),
        # An unreadable file is reported elsewhere.
        (True, (replace(SPEC, kind="", problem=ConfigurationProblem(SPEC.path, "no YAML")),), True),
    ],
)
def test_cdi_needs_to_be_on_and_a_specification(cdi: bool, specs: tuple[object, ...], well: bool) -> None:
    assert (judge(CHECK, runtime(RUNC, cdi=cdi, cdi_specs=specs)) == []) is well


def test_on_gke_there_is_none_by_design() -> None:
    observed = runtime(RUNC, distribution=GKE)

    assert judge(CHECK, observed) == []
    assert seen(CHECK, observed) == [Observation("no NVIDIA handler by design: the device plugin mounts the driver")]


def test_a_handler_in_an_unread_table_is_reported_as_unread() -> None:
    place = Misplaced(FILE, 3, "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", (NVIDIA,), 3)
    assert judge(CHECK, runtime(RUNC, misplaced=(place,))) == []


def test_a_handler_in_an_unimported_drop_in_is_reported_with_its_file() -> None:
    unread = (replace(NVIDIA, file=DROP_IN, line=3),)

    assert judge(CHECK, runtime(RUNC, unread_handlers=unread)) == [
        finding(
            "NvidiaRuntimeMissing",
            f"{DROP_IN}, line 3 has it, but no file imports that file: name it in `imports` of {FILE}; {MEND}",
        )
    ]
    assert judge(CHECK, runtime(RUNC, NVIDIA, unread_handlers=unread)) == []
    [other] = judge(CHECK, runtime(RUNC, unread_handlers=(replace(RUNC, file=DROP_IN),)))
    assert isinstance(other, Finding)
    assert DROP_IN not in other.detail


@pytest.mark.parametrize(
    ("version", "reader"), [("1.7.27", "containerd 1.7"), ("", "containerd 1.7 (assumed from version 2)")]
)
def test_a_handler_with_a_replaced_table_is_reported_with_the_later_file(version: str, reader: str) -> None:
    observed = runtime(RUNC, replaced=(RUNC, NVIDIA), replaced_by=DROP_IN, version=version, generation="1.7")

    assert judge(CHECK, observed) == [
        finding(
            "NvidiaRuntimeMissing",
            f"{FILE}, line 12 has it, but {DROP_IN}, read after it, replaces the CRI plugin's whole table in {reader}:"
            f" write the handlers into {DROP_IN} too, or remove that table from it; {MEND.replace(FILE, DROP_IN)}",
        )
    ]


def test_a_file_outside_crios_folders_is_reported_with_its_path() -> None:
    file = "/etc/crio/conf.d/99-nvidia.toml"
    unread = (replace(NVIDIA, file=file, line=6),)

    [judgement] = judge(CHECK, runtime(kind=CRIO, unread_handlers=unread))

    assert isinstance(judgement, Finding)
    move = "move it to /etc/crio/crio.conf.d"
    assert (judgement.reason, judgement.detail) == (
        "NvidiaRuntimeMissing",
        f"{file}, line 6 has it, but CRI-O does not read that folder: {move}",
    )


# The answer of the running one outranks the files.


@pytest.mark.parametrize(
    ("live", "well"),
    [
        (Live(handlers=("runc", "nvidia")), True),
        (Live(handlers=("runc", "gpu"), binaries=(("gpu", "/usr/bin/nvidia-container-runtime"),)), True),
        (Live(handlers=("runc", "gpu"), binaries=(("gpu", "/usr/bin/runc"),)), False),
        (Live(handlers=("runc",), cdi=True), True),
        (Live(handlers=("runc",), cdi=False), False),
        (Live(handlers=None), False),
    ],
)
def test_what_the_running_one_has_counts(live: Live, well: bool) -> None:
    assert (judge(CHECK, runtime(RUNC, live=live, cdi_specs=(SPEC,))) == []) is well


def test_a_defined_and_unloaded_handler_is_reported_as_unloaded() -> None:
    assert judge(CHECK, runtime(RUNC, NVIDIA, live=Live(handlers=("runc",)))) == []


# The toolkit wrote to another one's file.

OTHER = RuntimeConfiguration("/etc/other.toml", schema=2, handlers=(replace(NVIDIA, file="/etc/other.toml", line=4),))


@pytest.mark.parametrize(("kind", "owner"), [("containerd", "another containerd"), (DOCKER, "Docker"), (CRIO, "CRI-O")])
def test_a_handler_in_another_runtimes_file_is_reported_with_both_files(kind: str, owner: str) -> None:
    assert judge(CHECK, runtime(RUNC, others=(replace(OTHER, kind=kind),))) == [
        finding(
            "NvidiaRuntimeElsewhere",
            f"/etc/other.toml, line 4 has it, but {owner} reads that file; the kubelet's containerd reads {FILE}:"
            f" {GIVE}",
        )
    ]


@pytest.mark.parametrize(
    "other", [replace(OTHER, handlers=(RUNC,)), replace(OTHER, problem=ConfigurationProblem("/x", "no TOML"))]
)
def test_another_runtime_without_the_handler_is_not_reported(other: RuntimeConfiguration) -> None:
    assert reasons(judge(CHECK, runtime(RUNC, others=(other,)))) == ["NvidiaRuntimeMissing"]


def test_another_runtime_is_nobodys_business_while_ours_is_well() -> None:
    assert judge(CHECK, runtime(RUNC, NVIDIA, others=(OTHER,))) == []
    assert judge(CHECK, runtime(RUNC, others=(OTHER,), cdi=True, cdi_specs=(SPEC,))) == []


def test_it_tells_the_ways() -> None:
    assert seen(CHECK, runtime(RUNC, NVIDIA, cdi=True, cdi_specs=(SPEC,))) == [
        Observation("handler nvidia, CDI nvidia.com/gpu", "an NVIDIA handler, or CDI")
    ]
    assert seen(CHECK, runtime(RUNC, live=Live(handlers=("nvidia",))))[0].what == "handler nvidia as it runs"
