"""The kubelet's containerd, judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from healthcheck.checks.container_runtime import CHECK
from healthcheck.model import Finding, Judgement, NotConfigured, Probe, Seen, Severity, Unobserved
from healthcheck.probes.pci import FUNCTIONS
from healthcheck.probes.runtime.container_runtime import CONTAINER_RUNTIME, GKE, K3S, MICROK8S, RKE2
from healthcheck.probes.runtime.facts import (
    CdiSpec,
    Configuration,
    ContainerRuntime,
    Handler,
    Misplaced,
    Problem,
    Program,
    ReadFile,
)
from tests.checks.evidence import ADDRESSES, P5, finds, functions, tells

FILE, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
SOCKET = "/run/containerd/containerd.sock"
PROGRAM = "/usr/bin/nvidia-container-runtime"
RUNC = Handler("runc", "io.containerd.runc.v2", "", True, FILE)
NVIDIA = Handler("nvidia", "io.containerd.runc.v2", PROGRAM, True, FILE)
AKS = replace(NVIDIA, name="nvidia-container-runtime")
OFFERED = replace(AKS, binary="nvidia-container-runtime")
STARTED = 1_750_000_000.0
GENERIC = f"set the toolkit's CONTAINERD_CONFIG={FILE} and CONTAINERD_SOCKET={SOCKET}"
SPEC = (CdiSpec("/var/run/cdi/nvidia.yaml", "nvidia.com/gpu"),)


def configuration(*handlers: Handler, **more: Any) -> Configuration:
    files = (ReadFile(FILE, STARTED - 60), *(ReadFile(path, STARTED - 60) for path in more.pop("imported", ())))
    return replace(Configuration(FILE, schema=2, files=files, handlers=handlers), **more)


def runtime(*handlers: Handler, **more: Any) -> ContainerRuntime:
    """Its configuration with those handlers; `more` changes it, and what is around it."""
    around = {
        key: more.pop(key) for key in ("distribution", "others", "programs", "cdi_specs", "started") if key in more
    }
    base = ContainerRuntime(
        configuration(*handlers, **more),
        socket=SOCKET,
        known_from="--container-runtime-endpoint of kubelet",
        started=STARTED,
        programs=(Program(PROGRAM, PROGRAM, executable=True),),
    )
    return replace(base, **around)


def judge(around: ContainerRuntime, driver: str = "nvidia") -> list[Judgement]:
    return finds(CHECK, P5, {CONTAINER_RUNTIME: around, FUNCTIONS: functions(*ADDRESSES, driver=driver)})


def found(reason: str, detail: str) -> list[Judgement]:
    return [Finding(reason, Severity.MONITOR, "runtime/containerd", detail, flickers=True)]


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
def test_a_handler_of_nvidias_that_can_run_is_enough(handlers: tuple[Handler, ...]) -> None:
    assert judge(runtime(*handlers)) == []


@pytest.mark.parametrize("handlers", [(), (RUNC,), (RUNC, Handler("gvisor", "io.containerd.runsc.v1", "", None, FILE))])
def test_without_any_it_is_found(handlers: tuple[Handler, ...]) -> None:
    assert judge(runtime(*handlers)) == found("NvidiaRuntimeMissing", f"{FILE}: {GENERIC}")


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
    assert judge(runtime(replace(RUNC, name=name, binary=binary))) == found(
        "NvidiaRuntimeMissing", f"{FILE}: {GENERIC}"
    )


@pytest.mark.parametrize("distribution", [K3S, RKE2, MICROK8S])
def test_where_the_file_is_generated_the_detail_says_so(distribution: str) -> None:
    [finding] = judge(runtime(RUNC, distribution=distribution))

    assert isinstance(finding, Finding)
    assert "this file" in finding.detail
    assert "CONTAINERD_CONFIG" not in finding.detail


@pytest.mark.parametrize(("cdi", "specs", "well"), [(True, SPEC, True), (False, SPEC, False), (True, (), False)])
def test_cdi_needs_to_be_on_and_a_specification(cdi: bool, specs: tuple[str, ...], well: bool) -> None:
    assert (judge(runtime(RUNC, cdi=cdi, cdi_specs=specs)) == []) is well


def test_on_gke_there_is_none_by_design() -> None:
    around = runtime(RUNC, distribution=GKE)

    assert judge(around) == []
    seen: dict[Probe[Any], Any] = {CONTAINER_RUNTIME: around, FUNCTIONS: functions(*ADDRESSES)}
    assert tells(CHECK, P5, seen)[0].expected == "no handler of NVIDIA's: the device plugin mounts the driver"


# The toolkit wrote to another one's file.

OTHER = Configuration("/etc/other.toml", schema=2, handlers=(replace(NVIDIA, file="/etc/other.toml"),))


def test_a_handler_in_another_containerds_file_is_told_with_both_files() -> None:
    assert judge(runtime(RUNC, others=(OTHER,))) == found(
        "NvidiaRuntimeInOtherContainerd",
        f"/etc/other.toml has it; the kubelet's containerd reads {FILE}: {GENERIC}",
    )


@pytest.mark.parametrize("other", [replace(OTHER, handlers=(RUNC,)), replace(OTHER, problem=Problem("/x", "no TOML"))])
def test_another_containerd_without_it_is_not_told(other: Configuration) -> None:
    assert judge(runtime(RUNC, others=(other,))) == found("NvidiaRuntimeMissing", f"{FILE}: {GENERIC}")


@pytest.mark.parametrize("mine", [{"cdi": True, "cdi_specs": SPEC}, {}])
def test_another_containerd_is_nobodys_business_while_ours_is_well(mine: dict[str, Any]) -> None:
    handlers = (RUNC,) if mine else (RUNC, NVIDIA)

    assert judge(runtime(*handlers, others=(OTHER,), **mine)) == []


# The program.


def test_a_program_that_is_not_there_is_found() -> None:
    assert judge(runtime(NVIDIA, programs=())) == found(
        "RuntimeBinaryMissing", f"{FILE}: nvidia starts {PROGRAM}, which is not there to be run"
    )


def test_a_bare_name_is_looked_for_where_programs_lie() -> None:
    assert judge(runtime(OFFERED, programs=())) == found(
        "RuntimeBinaryMissing",
        f"{FILE}: nvidia-container-runtime starts nvidia-container-runtime, which is not there to be run,"
        " in no folder where programs usually lie",
    )


def test_a_handler_that_is_only_offered_is_judged_when_it_is_the_default() -> None:
    assert judge(runtime(NVIDIA, OFFERED)) == []
    [finding] = judge(runtime(NVIDIA, OFFERED, default=OFFERED.name))

    assert isinstance(finding, Finding)
    assert finding.reason == "RuntimeBinaryMissing"


def test_a_handler_without_a_program_starts_runc() -> None:
    bare = replace(NVIDIA, binary="")

    assert judge(runtime(bare)) == found("RuntimeBinaryMissing", f"{FILE}: nvidia has no BinaryName, so it starts runc")
    assert judge(runtime(bare, cdi=True, cdi_specs=SPEC)) == []


def test_a_runtime_that_starts_no_program_by_its_name_needs_none() -> None:
    assert judge(runtime(replace(NVIDIA, runtime_type="io.containerd.kata.v2", binary=""))) == []


# The files.


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (Problem(FILE, "Expected ']'", 3, 7), f"{FILE}, line 3, column 7: Expected ']'"),
        (Problem(DROP_IN, "a", 3), f"{DROP_IN}, line 3: a"),
        (Problem(DROP_IN, "imported, and does not exist"), f"{DROP_IN}: imported, and does not exist"),
    ],
)
def test_a_file_that_containerd_cannot_take_is_the_only_finding(problem: Problem, told: str) -> None:
    assert judge(runtime(problem=problem, others=(OTHER,))) == found("RuntimeConfigMalformed", told)


def test_a_file_that_we_cannot_read_is_no_fault() -> None:
    problem = Problem(FILE, "can't be read: more than 1 MiB", only_ours=True)

    assert judge(runtime(problem=problem)) == [
        Unobserved("RuntimeConfigUnreadable", f"{FILE}: can't be read: more than 1 MiB", "runtime/containerd")
    ]


PLACE = Misplaced(FILE, 3, "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", (RUNC, NVIDIA))


def test_a_handler_in_a_table_that_is_not_read_is_found_once() -> None:
    assert judge(runtime(misplaced=(PLACE,), others=(OTHER,))) == found(
        "RuntimeConfigMisplaced",
        f'{FILE}: nvidia under plugins."io.containerd.grpc.v1.cri";'
        ' version 3 has it in plugins."io.containerd.cri.v1.runtime"',
    )


@pytest.mark.parametrize("place", [PLACE, replace(PLACE, handlers=(RUNC,))])
def test_what_is_also_in_its_right_place_or_not_nvidias_is_not(place: Misplaced) -> None:
    assert judge(runtime(RUNC, NVIDIA, misplaced=(place,))) == []


def test_a_default_that_nobody_defines_is_found() -> None:
    assert judge(runtime(AKS, default="nvidia")) == found(
        "DefaultRuntimeUndefined",
        f"{FILE}: default_runtime_name is 'nvidia'; defined are nvidia-container-runtime, runc",
    )


@pytest.mark.parametrize("default", ["runc", "nvidia"])
def test_runc_needs_no_definition(default: str) -> None:
    assert judge(runtime(NVIDIA, default=default)) == []


@pytest.mark.parametrize(("after", "well"), [(-60.0, True), (10.0, True), (10.1, False), (86400.0, False)])
def test_a_file_newer_than_its_reader_is_found(after: float, well: bool) -> None:
    files = (ReadFile(FILE, STARTED - 60), ReadFile(DROP_IN, STARTED + after))

    told = found("RuntimeConfigNotLoaded", f"{DROP_IN}: changed after containerd was started")
    assert judge(runtime(NVIDIA, files=files)) == ([] if well else told)
    assert judge(runtime(NVIDIA, files=files, started=None)) == []


# Where it does not look, and what it says.

AT, BOTH = f"containerd at {SOCKET}", f"{FILE}, {DROP_IN}"


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau"])
def test_without_a_gpu_for_containers_it_is_nobodys_business(driver: str) -> None:
    assert judge(runtime(RUNC), driver) == [NotConfigured("no NVIDIA GPU for a container")]
    assert finds(CHECK, P5, {CONTAINER_RUNTIME: runtime(RUNC), FUNCTIONS: ()}) == [
        NotConfigured("no NVIDIA GPU for a container")
    ]


def test_without_a_containerd_of_the_kubelets_it_says_why() -> None:
    assert judge(ContainerRuntime(None, "no kubelet runs on this node")) == [
        NotConfigured("no kubelet runs on this node")
    ]


@pytest.mark.parametrize(
    ("around", "what"),
    [
        (runtime(RUNC, NVIDIA), f"{AT}, {FILE}: runc (default), nvidia"),
        (
            runtime(NVIDIA, imported=(DROP_IN,), default="nvidia", cdi=True, cdi_specs=SPEC),
            f"{AT}, {BOTH} (put together as containerd 1 does, assumed from version 2): nvidia (default), CDI",
        ),
        (
            runtime(imported=(DROP_IN,), schema=3),
            f"{AT}, {BOTH} (put together as containerd 2 does, assumed from version 3): no handler",
        ),
        (runtime(files=()), f"{AT}, no {FILE}, so its defaults: no handler"),
    ],
)
def test_it_tells_the_files_and_the_handlers(around: ContainerRuntime, what: str) -> None:
    seen: dict[Probe[Any], Any] = {CONTAINER_RUNTIME: around, FUNCTIONS: functions(*ADDRESSES)}

    assert tells(CHECK, P5, seen) == [
        Seen(what, "a handler of NVIDIA's that can run, or CDI", "--container-runtime-endpoint of kubelet")
    ]
