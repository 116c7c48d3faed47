"""The fabric manager's process, and its version."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.checks.fabric_manager import CHECK
from gpu_healthcheck.healthcheck.checks.per_gpu import DRIVER_GRACE
from gpu_healthcheck.healthcheck.model import (
    Finding,
    Judgement,
    NotConfigured,
    Observation,
    Probe,
    Severity,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.probes.driver_files import MODULES, KernelModules
from gpu_healthcheck.healthcheck.probes.nvml.gpus import NVML, DriverReading, Fabric, Mode
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS, PciFunction
from gpu_healthcheck.healthcheck.probes.services import (
    FABRIC_MANAGER,
    IMEX,
    SERVICES,
    FabricManagerStart,
    Service,
    Services,
    Uncounted,
)
from tests.checks.evidence import (
    ADDRESSES,
    G6,
    P5,
    UNKNOWN_TYPE,
    driver_is_silent,
    driver_says,
    every,
    functions,
    healthy,
    judgements,
)

DRIVER, OTHER = "570.133.20", "570.124.06"
SOURCE = "p5.48xlarge in fabrics.csv"
RUNNING = (Service(FABRIC_MANAGER, 1041, 3600.0),)
OTHERS_RUN = (Service(IMEX, 1042, 3600.0),)
STARTED = FabricManagerStart(DRIVER)
SWITCH = PciFunction("0000:cb:00.0", 0x10DE, 0x22A3, 0x068000, "nvidia-nvswitch")
NOT_RUNNING = Finding("FabricManagerNotRunning", Severity.RESET, "node", "no process nv-fabricmanager", flickers=True)
MISMATCH = Finding(
    "FabricManagerVersionMismatch",
    Severity.MONITOR,
    "node",
    f"fabric manager {OTHER}, driver {DRIVER}",
    flickers=True,
)


def judge(
    *running: Service,
    expected: Expectation = P5,
    start: FabricManagerStart | None = STARTED,
    of_host: bool = True,
    driver: str = DRIVER,
    pci: tuple[PciFunction, ...] = functions(*ADDRESSES),
    look: DriverReading | None = None,
    uncounted: tuple[Uncounted, ...] = (),
) -> list[Judgement]:
    seen: dict[Probe[Any], Any] = {
        NVML: look or driver_says(*every()),
        FUNCTIONS: pci,
        MODULES: KernelModules(driver, nouveau=False),
        SERVICES: Services(of_host, running, start, uncounted=uncounted),
    }
    return judgements(CHECK, expected, seen)


def findings(said: list[Judgement]) -> list[Finding]:
    return [finding for finding in said if isinstance(finding, Finding)]


IN_PODS = Uncounted(FABRIC_MANAGER, 3, "in containers")
PRIVILEGED = Uncounted(FABRIC_MANAGER, 1, "in privileged containers, none of them the driver's", unsure=True)


def test_an_instance_in_a_users_pod_is_no_substitute_and_is_reported() -> None:
    message = "3 called nv-fabricmanager in containers"
    (finding, seen) = judge(start=None, uncounted=(IN_PODS,))

    assert finding == replace(
        NOT_RUNNING, detail=f"no process nv-fabricmanager; {message}, which does not belong to the node"
    )
    assert isinstance(seen, Observation)
    assert seen.what == f"not running; not counted: {message}"
    assert findings(judge(*RUNNING, uncounted=(IN_PODS,))) == []


def test_whether_one_in_another_privileged_container_is_it_nobody_knows() -> None:
    said = judge(start=None, uncounted=(IN_PODS, PRIVILEGED))

    assert (findings(said), [unobserved.cause.name for unobserved in said if isinstance(unobserved, Unobserved)]) == (
        [],
        ["ServiceUncertain"],
    )
    assert findings(judge(*RUNNING, uncounted=(PRIVILEGED,))) == []


CONNECTED, LOST = Fabric(3, 0, health_mask=0x41AA), Fabric(3, 0, health_mask=0x81AA)
ALL_CONNECTED = "8 of 8 GPUs connected to the fabric manager"
ONE_LOST = "7 of 8 GPUs connected to the fabric manager"
DISCONNECTED = Finding(
    "FabricManagerDisconnected", Severity.RESET, "node", f"{ONE_LOST}; not gpu/{ADDRESSES[3]}", flickers=True
)
OLD = (Service(FABRIC_MANAGER, 1041, 180.0),)
YOUNG = (Service(FABRIC_MANAGER, 1041, 179.9),)
RACK = replace(P5, instance_type="p6e-gb200.36xlarge")


def connected(*lost: int) -> DriverReading:
    """All GPUs of a node with R615, without the manager for some of them."""
    return driver_says(*(healthy(n, fabric=LOST if n in lost else CONNECTED) for n in range(8)))


@pytest.mark.parametrize(
    ("state", "found", "causes"),
    [
        ({"running": OLD}, [DISCONNECTED], []),
        ({"running": YOUNG}, [], ["FabricComingUp"]),
        ({"running": ()}, [NOT_RUNNING], []),
        ({"running": (), "uncounted": (PRIVILEGED,)}, [DISCONNECTED], []),
        ({"running": (), "uncounted": (IN_PODS,)}, [DISCONNECTED], []),
        ({"running": (), "of_host": False}, [DISCONNECTED], []),
        ({"running": (), "expected": RACK}, [DISCONNECTED], []),
        ({"running": (), "expected": replace(RACK, driver_age_seconds=179.9)}, [], ["FabricComingUp"]),
        ({"running": (), "expected": UNKNOWN_TYPE}, [DISCONNECTED], []),
        ({"running": (), "expected": replace(P5, instance_type="p5.4xlarge")}, [], []),
    ],
)
def test_gpus_without_the_manager_are_one_finding_of_the_node(
    state: dict[str, Any], found: list[Finding], causes: list[str]
) -> None:
    options = {"start": None} | state
    said = judge(*options.pop("running"), look=connected(3), **options)

    assert findings(said) == found
    assert [one.cause.name for one in said if isinstance(one, Unobserved)] == causes


@pytest.mark.parametrize(
    ("fabric", "more"),
    [
        (Fabric(3, 0, health_mask=0xC1AA), {}),
        (Fabric(3, 0, health_mask=0x1AA), {}),
        (Fabric(3, 0), {}),
        (Fabric(2, 0, health_mask=0x81AA), {}),
        (Fabric(0, 0, health_mask=0x81AA), {}),
        (LOST, {"mig_mode": Mode(current=True, pending=True)}),
        (None, {}),
    ],
)
def test_a_gpu_that_does_not_report_its_connection_is_left_out(fabric: Fabric | None, more: dict[str, Mode]) -> None:
    """Older drivers report none, a GPU has none before its registration, and MIG mode may turn its links off."""
    gpus = (healthy(n, fabric=fabric, **more) if n == 3 else healthy(n, fabric=CONNECTED) for n in range(8))
    (said,) = judge(*OLD, look=driver_says(*gpus), start=None)

    assert isinstance(said, Observation)
    assert said.what == "running; 7 of 7 GPUs connected to the fabric manager"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"running": OLD}, f"running; {ALL_CONNECTED}"),
        ({"uncounted": (PRIVILEGED,)}, f"process not visible; {ALL_CONNECTED}; not counted: 1 called"),
        ({"uncounted": (IN_PODS,)}, f"process not visible; {ALL_CONNECTED}; not counted: 3 called"),
        ({"of_host": False}, f"process not visible; {ALL_CONNECTED}"),
        ({"expected": RACK}, ALL_CONNECTED),
        ({"expected": UNKNOWN_TYPE}, ALL_CONNECTED),
    ],
)
def test_gpus_with_the_manager_prove_it_wherever_it_runs(state: dict[str, Any], message: str) -> None:
    options = {"start": None} | state
    (said,) = judge(*options.pop("running", ()), look=connected(), **options)

    assert isinstance(said, Observation)
    assert said.what.startswith(message)


def test_without_any_process_of_that_name_an_old_answer_of_the_driver_proves_nothing() -> None:
    assert findings(judge(look=connected(), start=None)) == [NOT_RUNNING]


def test_running_of_the_drivers_version_it_is_no_finding() -> None:
    assert judge(*RUNNING) == [Observation(f"running, version {DRIVER}", f"running, version {DRIVER}", SOURCE)]


@pytest.mark.parametrize("running", [(), OTHERS_RUN])
def test_not_running_it_is_found(running: tuple[Service, ...]) -> None:
    assert judge(*running) == [NOT_RUNNING, Observation("not running", f"running, version {DRIVER}", SOURCE)]


@pytest.mark.parametrize(
    "kind", ["p4d.24xlarge", "p4de.24xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "ml.p5.48xlarge"]
)
def test_every_type_with_switches_of_its_own_needs_it(kind: str) -> None:
    assert findings(judge(expected=replace(P5, instance_type=kind))) == [NOT_RUNNING]


@pytest.mark.parametrize("kind", ["p5.4xlarge", "p3dn.24xlarge", "p6e-gb200.36xlarge", "g6.48xlarge"])
@pytest.mark.parametrize("running", [RUNNING, ()])
def test_a_type_without_needs_none(kind: str, running: tuple[Service, ...]) -> None:
    findings = judge(*running, expected=replace(G6, instance_type=kind), pci=(*functions(*ADDRESSES), SWITCH))

    assert findings == [NotConfigured("no fabric manager is needed on this node")]


def test_unknown_type_needs_it_if_it_drives_switches() -> None:
    assert findings(judge(expected=UNKNOWN_TYPE, pci=(*functions(*ADDRESSES), SWITCH))) == [NOT_RUNNING]


@pytest.mark.parametrize("more", [(), (replace(SWITCH, driver="vfio-pci"),), (replace(SWITCH, pci_class=0x060400),)])
def test_unknown_type_needs_none_if_it_drives_none(more: tuple[PciFunction, ...]) -> None:
    findings = judge(expected=UNKNOWN_TYPE, pci=(*functions(*ADDRESSES), *more))

    assert findings == [NotConfigured("no fabric manager is needed on this node")]


@pytest.mark.parametrize(("age", "found"), [(0.0, False), (119.9, False), (120.0, True)])
def test_it_may_take_its_time_after_the_driver(age: float, found: bool) -> None:
    findings = judge(expected=replace(P5, driver_age_seconds=age))

    blind = Unobserved(
        UnobservedCause.named("DriverJustLoaded"),
        "no fabric manager runs yet; judged 120 s after the driver was loaded",
    )
    assert findings[:-1] == [NOT_RUNNING if found else blind]
    assert DRIVER_GRACE.seconds == 120


def test_gpus_that_others_have_need_none_here() -> None:
    assert judge(pci=functions(*ADDRESSES, driver="vfio-pci")) == [
        NotConfigured("every GPU is bound to another driver")
    ]


@pytest.mark.parametrize("driver", ["nvidia", ""])
def test_one_gpu_of_ours_needs_it(driver: str) -> None:
    pci = (*functions(*ADDRESSES[1:], driver="vfio-pci"), *functions(ADDRESSES[0], driver=driver))

    assert findings(judge(pci=pci)) == [NOT_RUNNING]


def test_a_node_that_lost_its_gpus_needs_it_as_before() -> None:
    assert findings(judge(pci=())) == [NOT_RUNNING]


def test_missing_driver_is_unobserved() -> None:
    assert judge(driver="") == [
        Unobserved(
            UnobservedCause.named("DriverNotLoaded"),
            "the fabric manager needs the nvidia kernel module, which is not loaded",
        )
    ]


@pytest.mark.parametrize("running", [RUNNING, ()])
def test_hidden_host_processes_are_unobserved(running: tuple[Service, ...]) -> None:
    assert judge(*running, of_host=False) == [
        Unobserved(UnobservedCause.named("HostProcessesHidden"), "the host's processes are not visible")
    ]


@pytest.mark.parametrize("cause", ["DriverBeingChanged", "DriverNotLoaded"])
def test_fabric_manager_is_not_judged_without_a_driver(cause: str) -> None:
    blind = Unobserved(UnobservedCause.named(cause), "why")

    assert judge(look=driver_is_silent(blind)) == [blind]


@pytest.mark.parametrize("cause", ["DriverNotAnswering", "NvmlError", "NvmlLibraryNotFound"])
def test_it_needs_no_answer_of_nvml(cause: str) -> None:
    assert findings(judge(look=driver_is_silent(Unobserved(UnobservedCause.named(cause), "why")))) == [NOT_RUNNING]


def test_a_running_one_of_another_version_is_found() -> None:
    assert judge(*RUNNING, start=FabricManagerStart(OTHER)) == [
        MISMATCH,
        Observation(f"running, version {OTHER}", f"running, version {DRIVER}", SOURCE),
    ]


def test_a_library_that_rejected_the_driver_is_found_with_the_absence() -> None:
    assert findings(judge(start=FabricManagerStart(OTHER, DRIVER))) == [NOT_RUNNING, MISMATCH]


@pytest.mark.parametrize(
    ("running", "start"),
    [
        ((), FabricManagerStart(OTHER)),  # an earlier start proves nothing about the present installation
        ((), FabricManagerStart(OTHER, "535.54.03")),  # it refused a driver that is no longer loaded
        ((), None),
        (RUNNING, None),
        (RUNNING, FabricManagerStart(DRIVER)),
    ],
)
def test_an_unreported_version_is_not_judged(running: tuple[Service, ...], start: FabricManagerStart | None) -> None:
    assert MISMATCH not in judge(*running, start=start)
