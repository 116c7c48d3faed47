"""HAMi's part on the host: files for containers, and leftovers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.hami import CHECK
from gpu_healthcheck.healthcheck.model import Finding, NotConfigured, Observation, TooEarly
from gpu_healthcheck.healthcheck.probes.hami import HAMI, File, Hami, Plugin, StaleFolders
from gpu_healthcheck.healthcheck.probes.pci import FUNCTIONS
from tests.checks.evidence import ADDRESSES, P5, finds, functions, judgements

VGPU = "/usr/local/vgpu"
LIBRARY = File("libvgpu.so.v2.8.0", plain=True, size=4 << 20)
OLDER = File("libvgpu.so.v2.5.3", plain=True, size=4 << 20)
PRELOAD = File("ld.so.preload", plain=True, size=27)
PLUGIN = Plugin(
    VGPU,
    brings=(LIBRARY.name,),
    libraries=(LIBRARY,),
    preload=PRELOAD,
    preloads=(f"{VGPU}/libvgpu.so",),
    sockets=("kubelet.sock", "nvidia-gpu.sock"),
)
HERE = Hami(
    runs=True,
    up_seconds=3600.0,
    plugin=PLUGIN,
    listening=("nvidia-gpu.sock",),
    leftovers=StaleFolders(f"{VGPU}/containers", ()),
)
NO_MORE_THERE = "which is no longer in the kubelet's folder: the kubelet was started after it"
LEFT = tuple(f"{digit * 8}-1f2a-4c3b-8d4e-5f6a7b8c9d0e_cuda" for digit in "abcdef")


def with_plugin(**different: object) -> Hami:
    return replace(HERE, plugin=replace(PLUGIN, **different))


def found(hami: Hami) -> list[tuple[str, str]]:
    findings = finds(CHECK, P5, {HAMI: hami, FUNCTIONS: functions(*ADDRESSES)})
    return [(finding.reason, finding.detail) for finding in findings if isinstance(finding, Finding)]


def too_early(hami: Hami) -> set[str]:
    """The faults that it leaves open."""
    findings = finds(CHECK, P5, {HAMI: hami, FUNCTIONS: functions(*ADDRESSES)})
    return {reason for judgement in findings if isinstance(judgement, TooEarly) for reason in judgement.reasons}


INSTALL, WRONG, SILENT = "HamiLibraryNotInstalled", "HamiPreloadWrong", "HamiPluginNotServing"
NO_SOCKET = "nothing in its pod listens on nvidia-*.sock"
FAULTS: list[tuple[Hami, str, str]] = [
    (with_plugin(libraries=()), INSTALL, f"no {VGPU}/libvgpu.so.v2.8.0"),
    (with_plugin(libraries=(OLDER,)), INSTALL, f"no {VGPU}/libvgpu.so.v2.8.0"),
    (
        with_plugin(libraries=(replace(LIBRARY, plain=False),)),
        INSTALL,
        f"{VGPU}/libvgpu.so.v2.8.0 is not a regular file",
    ),
    (with_plugin(libraries=(replace(LIBRARY, size=0),)), INSTALL, f"{VGPU}/libvgpu.so.v2.8.0 is empty"),
    (with_plugin(brings=(), libraries=()), INSTALL, f"no {VGPU}/libvgpu.so"),
    (with_plugin(preload=None, preloads=()), WRONG, f"no {VGPU}/ld.so.preload"),
    (
        with_plugin(preload=replace(PRELOAD, plain=False), preloads=()),
        WRONG,
        f"{VGPU}/ld.so.preload is not a regular file",
    ),
    (with_plugin(preload=replace(PRELOAD, size=0), preloads=()), WRONG, f"{VGPU}/ld.so.preload is empty"),
    (
        with_plugin(preloads=("/opt/vgpu/libvgpu.so",)),
        WRONG,
        f"{VGPU}/ld.so.preload names /opt/vgpu/libvgpu.so, but containers have {VGPU}/libvgpu.so",
    ),
    (replace(HERE, listening=()), SILENT, NO_SOCKET),
    (replace(HERE, listening=("smarter-fuse.sock",)), SILENT, NO_SOCKET),
    (replace(HERE, plugin=None, listening=()), SILENT, NO_SOCKET),
    (with_plugin(sockets=("kubelet.sock",)), SILENT, f"its plugin listens on nvidia-gpu.sock, {NO_MORE_THERE}"),
    (
        replace(HERE, leftovers=StaleFolders(f"{VGPU}/containers", LEFT)),
        "HamiLeftovers",
        f"6 folders in {VGPU}/containers: {', '.join(LEFT[:4])}, …",
    ),
    (
        replace(HERE, mig_lock_seconds=600.0),
        "HamiMigLockStale",
        "/tmp/hami/hami-mig-apply.lock was created 10 min ago",
    ),
]


@pytest.mark.parametrize(("hami", "reason", "detail"), FAULTS)
def test_fault_is_a_finding(hami: Hami, reason: str, detail: str) -> None:
    assert found(hami) == [(reason, detail)]


@pytest.mark.parametrize(
    "hami",
    [
        HERE,
        with_plugin(brings=("libvgpu.so",), libraries=(replace(LIBRARY, name="libvgpu.so"),)),
        with_plugin(libraries=(replace(OLDER, plain=False), LIBRARY)),
        with_plugin(brings=(), libraries=(OLDER,)),
        with_plugin(preloads=("/usr/lib/another.so", f"{VGPU}//libvgpu.so")),
        with_plugin(sockets=None),
        with_plugin(sockets=("nvidia-gpu.sock",)),
        with_plugin(sockets=("another.sock",)),
        replace(HERE, listening=("nvidia-mig-1g.10gb.sock", "nvidia-gpu.sock")),
        replace(HERE, plugin=None),
        # Volcano's own plugin with the same monitor.
        replace(HERE, plugin=None, listening=("volcano-vgpu-number.sock",)),
        replace(HERE, mig_lock_seconds=599.0),
    ],
)
def test_healthy_state_is_no_finding(hami: Hami) -> None:
    assert found(hami) == []


def test_young_pod_is_too_early() -> None:
    young = replace(with_plugin(libraries=(), preload=None), up_seconds=119.0, listening=())

    assert found(young) == []
    assert too_early(young) >= {"HamiLibraryNotInstalled", "HamiPreloadWrong", "HamiPluginNotServing"}


@pytest.mark.parametrize(
    ("up", "delay", "counts"), [(599.0, 300.0, False), (600.0, 300.0, True), (3600.0, 3600.0, False)]
)
def test_folder_that_the_monitor_may_still_remove_is_no_finding(up: float, delay: float, counts: bool) -> None:
    hami = replace(HERE, up_seconds=up, resync_seconds=delay, leftovers=StaleFolders(VGPU, LEFT))

    assert bool(found(hami)) is counts
    assert ("HamiLeftovers" in too_early(hami)) is not counts


@pytest.mark.parametrize(
    ("hami", "open_faults"),
    [
        (replace(HERE, listening=None), {"HamiPluginNotServing"}),
        (replace(HERE, leftovers=None), {"HamiLeftovers"}),
        (replace(HERE, plugin=None), {"HamiLibraryNotInstalled", "HamiPreloadWrong"}),
    ],
)
def test_unknown_state_is_too_early(hami: Hami, open_faults: set[str]) -> None:
    assert too_early(hami) == open_faults


@pytest.mark.parametrize(
    ("hami", "driver", "why"),
    [
        (Hami(), "nvidia", "HAMi does not run on this node"),
        (replace(HERE, listening=()), "", "no GPU is bound to the NVIDIA driver"),
    ],
)
def test_node_without_hami_is_not_configured(hami: Hami, driver: str, why: str) -> None:
    findings = judgements(CHECK, P5, {HAMI: hami, FUNCTIONS: functions(*ADDRESSES, driver=driver)})

    assert findings == [NotConfigured(why)]


def test_observation_has_library_and_socket() -> None:
    findings = judgements(CHECK, P5, {HAMI: HERE, FUNCTIONS: functions(*ADDRESSES)})

    observation = Observation(
        f"{VGPU}: libvgpu.so.v2.8.0; listens on nvidia-gpu.sock",
        "its library, its ld.so.preload and a socket of its plugin",
    )
    assert findings == [observation]
