"""Facts of the types that probes declare, plausible or not: every judge must handle them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpu_healthcheck.healthcheck.catalog.hardware import fabrics
from gpu_healthcheck.healthcheck.catalog.policy import Policy
from gpu_healthcheck.healthcheck.catalog.profiles import InstanceProfile
from gpu_healthcheck.healthcheck.checks import CHECKS, clocks, ecc_storm, nvlink_errors, recovery_action
from gpu_healthcheck.healthcheck.checks.expectation import Expectation
from gpu_healthcheck.healthcheck.model import (
    Check,
    Evidence,
    Finding,
    Judgement,
    Nature,
    NotConfigured,
    Observation,
    Passed,
    Probe,
    Severity,
    TooEarly,
    Unobserved,
    UnobservedCause,
)
from gpu_healthcheck.healthcheck.model.node_facts import EarlierHardware, GpuPosition, PodRuntimeClass, RdmaPort
from gpu_healthcheck.healthcheck.probes import (
    driver_files,
    gdrcopy,
    gpu_pods,
    hami,
    kernel_log,
    limits,
    mlx5,
    pci,
    services,
)
from gpu_healthcheck.healthcheck.probes.container_runtime import configuration as container_runtime
from gpu_healthcheck.healthcheck.probes.container_runtime import distributions, facts
from gpu_healthcheck.healthcheck.probes.efa import infiniband, libfabric
from gpu_healthcheck.healthcheck.probes.nvml import gpus as nvml
from tests.checks.evidence import ADDRESSES, EFA_ADDRESSES, P5, every, healthy
from tests.hostile import HOSTILE

LONGEST_DETAIL = 3000
"""For what a person reads: a few lines. GPUs or links by the hundred are counted, or listed where there are few."""
KINDS = ("gpu/", "efa/", "nvswitch/", "runtime/", "rdma/")
WITHOUT_A_NAME = ("driver", "node")
LEVEL_CHECKS = tuple(check for check in CHECKS if check.nature is Nature.LEVEL)

numbers = st.sampled_from([*range(10), -(2**63), -1, 60, 61, 2**31, 2**32 - 1, 2**64 - 1, 2**70])
words = st.sampled_from(
    ["", "NVIDIA", "0000:53:00.0", "570.133.20", "\N{SNOWMAN}", "' \"\\{}%s", "x" * 64, "0x", *HOSTILE]
)
addresses = st.sampled_from(["", *ADDRESSES[:3], "0000:ff:1f.0"])
codes = st.just(0) | st.sampled_from([8, 11, 14, 15, 16]) | st.sampled_from([*range(1, 31), 999, -1, 2**31 - 1])
seconds = st.floats(0, 1e9) | st.sampled_from([0.0, 119.9, 120.0, 180.0, float("inf")])
causes = st.builds(
    Unobserved,
    st.sampled_from(["DriverNotLoaded", "DriverBeingChanged", "DriverNotAnswering", "NvmlNonsense"]).map(
        UnobservedCause.named
    ),
    words,
)
_READINGS = ("ecc", "temperature", "pcie", "nvlinks", "nvlink_counters", "fabric", "p2p", "memory", "inforom_valid")


def _perhaps(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def _few(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


_modes = st.builds(nvml.Mode, st.booleans(), st.booleans())
_counters = st.dictionaries(st.sampled_from([*nvlink_errors.LEAST_PER_SECOND, "of_drivers_to_come"]), numbers)
_links = st.builds(nvml.NvLink, st.integers(0, 35), st.booleans(), _perhaps(numbers), _counters)
_fabrics = st.builds(nvml.Fabric, numbers, codes, numbers, words, _perhaps(numbers), _perhaps(numbers))
_memory_errors = st.builds(nvml.MemoryErrors, *[_perhaps(numbers)] * 2)
_throttled = st.builds(nvml.ThrottledTime, *[_perhaps(numbers)] * 4)
_samples = _perhaps(st.builds(nvml.Samples, st.integers(1, 1000), numbers, numbers))
_loads = st.builds(nvml.Load, *[_perhaps(numbers)] * 6, *[_samples] * 3)
_temperatures = st.builds(nvml.Temperature, *[_perhaps(numbers | st.integers(-300, 1000))] * 4)

GPU: dict[str, st.SearchStrategy[Any]] = {
    "error": codes,
    "address": addresses,
    "uuid": words,
    "serial": words,
    "recovery_action": _perhaps(numbers),
    "recovery_error": codes,
    "instances": _perhaps(st.tuples() | st.tuples(numbers)),
    "errors": st.dictionaries(st.sampled_from(_READINGS), codes, max_size=2),
    "minor": _perhaps(numbers),
    "persistence": _perhaps(st.booleans()),
    "ecc_mode": _perhaps(_modes),
    "mig_mode": _perhaps(_modes),
    "ecc": _perhaps(st.builds(nvml.EccCounts, numbers, numbers, numbers, numbers)),
    "sram_threshold_exceeded": _perhaps(st.booleans()),
    "row_remap": _perhaps(st.builds(nvml.RowRemap, numbers, numbers, st.booleans(), st.booleans(), _perhaps(numbers))),
    "memory_errors": _perhaps(_memory_errors),
    "throttled": _perhaps(_throttled),
    "load": _perhaps(_loads),
    "unrepairable_memory": _perhaps(st.booleans()),
    "sram_unique": _perhaps(st.builds(nvml.SramUnique, numbers, numbers)),
    "exhausted_banks": _perhaps(numbers),
    "retired_pages": _perhaps(st.builds(nvml.RetiredPages, numbers, numbers, st.booleans())),
    "repair": _perhaps(st.builds(nvml.PendingRepair, st.booleans(), st.booleans())),
    "clock_reasons": _perhaps(numbers | st.integers(0, 0x1FF)),
    "temperature": _perhaps(_temperatures),
    "inforom_valid": _perhaps(st.booleans()),
    "memory": _perhaps(st.builds(nvml.MemoryUse, numbers, numbers, numbers)),
    "processes": _perhaps(numbers),
    "pcie": _perhaps(st.builds(nvml.PcieLink, numbers, numbers, _perhaps(numbers), _perhaps(numbers))),
    "pcie_replays": _perhaps(numbers),
    "nvlinks": _perhaps(st.lists(_links, max_size=3).map(tuple)),
    "fabric": _perhaps(_fabrics),
}
"""What a GPU can tell."""


@st.composite
def gpus(draw: st.DrawFn) -> nvml.Gpu:
    """A healthy GPU with some changed readings: with all readings invalid, most checks observe nothing."""
    odd = draw(st.lists(st.sampled_from([*GPU]), max_size=6))
    changes = {name: draw(GPU[name]) for name in dict.fromkeys(odd)}
    return healthy(draw(st.integers(0, 7)), **changes)


_pairs = st.builds(nvml.P2p, addresses, addresses, numbers, numbers)
_answers = st.builds(
    nvml.Gpus,
    words,
    words,
    st.lists(gpus(), max_size=2).map(lambda some: (*some, *every()[2:])) | gpus().map(lambda one: (one,) * 20),
    st.lists(_pairs, max_size=3).map(tuple),
)
_moments = st.floats(0, 1e9)
driver_looks = st.builds(
    nvml.DriverReading,
    st.one_of(*[_answers] * 9, causes),
    st.lists(_moments, max_size=2).map(tuple),
    seconds,
    _perhaps(numbers),
    words,
    st.lists(words, max_size=2).map(tuple),
    _perhaps(seconds),
    st.booleans(),
    _moments,
    _few(st.builds(nvml.Snapshot, _moments, _few(gpus()))),
)
_functions = st.builds(
    pci.PciFunction,
    st.sampled_from(ADDRESSES[:3] + EFA_ADDRESSES[:3]),
    st.sampled_from([pci.NVIDIA, pci.AMAZON, pci.MELLANOX, 0]),
    st.sampled_from([0x2330, 0xEFA0, 0xEFA2]) | numbers,
    st.sampled_from([0x030000, 0x030200, 0x068000, 0x020700]) | numbers,
    st.sampled_from(["", "nvidia", "efa", "vfio-pci", "nouveau", "nvidia-nvswitch"]),
    st.booleans(),
    numbers,
    addresses,
)
_devices = st.builds(
    infiniband.RdmaDevice,
    st.sampled_from(["rdmap16s0", "rdmap17s0", "efa_0", "\N{SNOWMAN}"]),
    st.booleans(),
    addresses,
    st.sampled_from(["", "uverbs0"]),
    _perhaps(words),
    st.dictionaries(st.sampled_from([infiniband.KEEP_ALIVES, *infiniband.ERROR_COUNTERS]), numbers, max_size=4),
    st.just("") | words,
)
_running = st.builds(
    services.Service, st.sampled_from([services.FABRIC_MANAGER, services.IMEX]), numbers, _perhaps(seconds)
)
_names = st.lists(words, max_size=3).map(tuple)
_listings = st.builds(libfabric.Listing, _names, codes, _names, words, words)
_starts = st.builds(services.FabricManagerStart, words, st.just("") | words)

_PATHS = ["", "/etc/containerd/config.toml", "/usr/local/nvidia/toolkit/nvidia-container-runtime"]
_paths = st.sampled_from(_PATHS) | words
_handler_names = st.sampled_from(["runc", "nvidia", "Nvidia", "nvidia-cdi", "nvidia-container-runtime"]) | words
_versions = st.sampled_from(["", "1.7.27", "2.1.4-k3s1", "v3", "2"]) | words
_flags = _perhaps(st.booleans())
_shims = st.sampled_from(["", "io.containerd.runc.v2", "io.containerd.runc.v1", "io.containerd.kata.v2"]) | words
_problems = st.builds(facts.ConfigurationProblem, _paths, words, numbers, numbers, st.booleans())


_read_files = _few(st.builds(facts.ReadFile, _paths, seconds))
_kinds = st.sampled_from([facts.CONTAINERD, facts.CRIO, facts.DOCKER])
_handlers = _few(st.builds(facts.Handler, _handler_names, _shims, _paths, _flags))
_configurations = st.builds(
    facts.RuntimeConfiguration,
    _handlers,
    _handler_names,
    _flags,
    _few(words),
    st.booleans(),
    st.integers(0, 4),
    words,
)
_definitions = _few(st.builds(facts.NvidiaDefinition, _paths, _handler_names, _paths, _kinds, _paths))
_live = st.builds(facts.Live, words, _versions, words, _perhaps(_configurations))
_programs = _few(
    st.builds(facts.RuntimeBinary, _paths, _paths, st.booleans(), st.sampled_from(["", "x86_64", "aarch64"]))
)
_specs = _few(st.builds(facts.CdiSpec, _paths, words, _few(words), _few(_paths), _perhaps(_problems)))
_toolkits = st.builds(facts.Toolkit, _paths, words, _paths, _paths, _few(_paths), _perhaps(_problems))
_distributions = st.sampled_from(sorted({one.distribution for one in distributions.LAYOUTS} | {"GKE", "Bottlerocket"}))
_runtimes = st.builds(
    facts.ContainerRuntime,
    path=_paths,
    kind=_kinds,
    why_none=words,
    socket=words,
    known_from=words,
    unit=st.sampled_from(["", "k3s-agent.service", "snap.k8s.containerd.service"]) | words,
    distribution=_distributions | words,
    template=_paths,
    kubelet=_perhaps(st.builds(facts.Kubelet, words, numbers, _paths, _flags)),
    files=_read_files,
    others=_few(_paths),
    definitions=_definitions,
    programs=_programs,
    cdi_specs=_specs,
    toolkit=_perhaps(_toolkits),
    live=_perhaps(_live),
    why_not_live=words,
    on_disk=_perhaps(_configurations),
    refusal=_perhaps(_problems),
    why_not_loaded=words,
    architecture=st.sampled_from(["", "x86_64", "aarch64"]),
    for_gpus=_flags,
    not_found=st.booleans(),
)

_uncounted = st.builds(
    services.Uncounted, st.sampled_from([services.FABRIC_MANAGER, services.IMEX]), numbers, words, st.booleans()
)

_device_names = [
    "nvidiactl",
    "nvidia0",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-caps/nvidia-cap1",
    "nvidia-cap\u00b2",
]
_device_files = st.builds(
    driver_files.DeviceFile,
    st.sampled_from(driver_files.FOLDERS),
    st.sampled_from(_device_names) | words,
    st.booleans(),
    numbers | st.just(195),
    numbers | st.just(255),
)
_files = st.builds(hami.File, words, st.booleans(), numbers)
_plugins = st.builds(hami.Plugin, _paths, _names, _few(_files), _perhaps(_files), _few(_paths), _perhaps(_names))
_hami = st.builds(
    hami.Hami,
    st.booleans(),
    seconds,
    _perhaps(_plugins),
    _perhaps(_few(st.sampled_from(["nvidia-gpu.sock", "kubelet.sock"]) | words)),
    seconds,
    _perhaps(st.builds(hami.StaleFolders, _paths, _names)),
    _perhaps(seconds),
)
_majors = _perhaps(st.dictionaries(st.sampled_from(["nvidia", "nvidia-uvm", "nvidia-caps"]), numbers))

_mlx5_devices = st.builds(
    mlx5.Mlx5Device,
    st.sampled_from(["mlx5_0", "mlx5_1", "rocep216s0", "mlx5_bond_0"]) | words,
    st.sampled_from(ADDRESSES[:3]),
    numbers,
    st.sampled_from(["", "MT_0000000838"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "ibp24s0"]),
    st.sampled_from(["4: ACTIVE", "1: DOWN"]) | words,
    st.sampled_from(["5: LinkUp", "2: Polling"]) | words,
    st.sampled_from([0.0, 200.0, 400.0]) | seconds,
    st.sampled_from(["InfiniBand", "Ethernet"]) | words,
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.sampled_from([*mlx5.PORT_COUNTERS, *mlx5.HARDWARE_COUNTERS]), numbers, max_size=3),
    st.just("") | words,
)
_ports = st.builds(
    RdmaPort,
    st.sampled_from(["mlx5_0", "mlx5_1"]) | words,
    words,
    st.sampled_from([0.0, 400.0]) | seconds,
    st.lists(seconds, max_size=5).map(tuple),
    _perhaps(st.tuples(seconds, seconds)),
)

_subjects = st.sampled_from([gpu.subject for gpu in every()])
FACTS: dict[Probe[Any], st.SearchStrategy[Any]] = {
    nvml.NVML: driver_looks,
    gpu_pods.GPU_PODS: _few(
        st.builds(gpu_pods.GpuPods, _moments, st.dictionaries(_subjects, words, max_size=8), st.just("") | words)
    ),
    pci.FUNCTIONS: st.lists(_functions, max_size=5).map(tuple),
    infiniband.RDMA: st.builds(infiniband.Rdma, st.lists(_devices, max_size=4).map(tuple), st.booleans(), words),
    mlx5.MLX5: st.builds(
        mlx5.Mlx5, st.lists(_mlx5_devices, max_size=4).map(tuple), st.booleans(), _perhaps(_few(words)), st.booleans()
    ),
    driver_files.MODULES: st.builds(driver_files.KernelModules, words, st.booleans()),
    services.SERVICES: st.builds(
        services.Services,
        st.booleans(),
        st.lists(_running, max_size=2).map(tuple),
        _perhaps(_starts),
        st.booleans(),
        _few(_uncounted),
    ),
    driver_files.DEVICE_FILES: st.builds(
        driver_files.DeviceFiles, _few(st.sampled_from(driver_files.FOLDERS)), _few(_device_files), _majors
    ),
    hami.HAMI: _hami,
    gdrcopy.GDRCOPY: st.builds(gdrcopy.GdrCopy, words, st.booleans(), st.booleans()),
    limits.LIMITS: _perhaps(st.builds(limits.ProcessLimits, _perhaps(numbers))),
    libfabric.LIBFABRIC: st.builds(libfabric.LibfabricReading, st.none() | _listings | causes, words),
    container_runtime.CONTAINER_RUNTIME: _runtimes,
    kernel_log.RING: st.just(()),
}
"""By probe. What the kernel's log may say has targets of its own."""

_types = st.sampled_from(["p5.48xlarge", "ml.p5.48xlarge", "x9.metal", ""]) | st.sampled_from(sorted(fabrics()))
_profiles = st.builds(InstanceProfile, _types, st.integers(0, 16), st.integers(0, 40), st.booleans(), words)
_ages = st.sampled_from([float("inf"), 3600.0, 119.9, 120.0, 180.0, 0.0])
_first = st.builds(
    EarlierHardware,
    _perhaps(numbers),
    st.dictionaries(st.sampled_from(ADDRESSES[:3]), st.builds(GpuPosition, numbers, addresses)),
    rdma=_perhaps(st.dictionaries(st.sampled_from(ADDRESSES[:3]), _ports, max_size=3)),
)
expectations = st.builds(
    Expectation,
    st.just(P5.profile) | _profiles | st.none(),
    _types,
    _ages,
    st.just(Policy()),
    _first,
    _perhaps(numbers),
    numbers,
    _perhaps(_few(st.builds(PodRuntimeClass, words, _handler_names, st.booleans()))),
)


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    """Return the evidence of one check cycle, or of two consecutive cycles.

    In the earlier cycle, the devices may be different, and some probes may be unobserved.
    """

    def looked() -> dict[Probe[Any], Any]:
        return {probe: draw(facts) for probe, facts in FACTS.items()}

    if draw(st.booleans()):
        return Evidence(looked(), 1000.0)
    before = looked()
    if draw(st.booleans()):
        before[draw(st.sampled_from([*FACTS]))] = Unobserved(UnobservedCause.named("ProbeFailed"), "x")
    return Evidence(looked(), 1000.0, Evidence(before, draw(st.sampled_from([990.0, 0.0, 999.999, 1000.0, 2000.0]))))


def any_facts_are_judged(seen: Evidence, expected: Expectation) -> None:
    """Check that every check judges any facts, with the same result each time and its own valid reasons."""
    for check in LEVEL_CHECKS:
        findings = list(check.judge(seen, expected))
        assert list(check.judge(seen, expected)) == findings
        is_in_order(check, findings)


DECIDED_AT_ONCE = {ecc_storm.STORM.name, clocks.THERMAL.name, clocks.POWER_BRAKE.name}
"""Reasons that flicker, but whose total or counted time of slowdown decides in one check cycle."""


def is_in_order(check: Check, findings: list[Judgement]) -> None:
    # One line for people: the observation, or the reason for its absence.
    assert sum(isinstance(judgement, Observation | NotConfigured) for judgement in findings) <= 1, (
        check.name,
        findings,
    )
    # Active findings are kept by reason and subject.
    found = [
        (finding.reason, finding.subject)
        for finding in findings
        if isinstance(finding, Finding) and finding.subject.startswith("runtime/")
    ]
    assert len(found) == len(set(found)), (check.name, findings)
    reasons = {reason.name: reason for reason in check.reasons}
    for judgement in findings:
        if isinstance(judgement, Finding):
            reason = reasons[judgement.reason]
            allowed = {reason.severity}
            if judgement.reason == recovery_action.WANTED.name:  # the driver's recovery action has its own table
                allowed = {Severity.MONITOR, Severity.RESET, Severity.REBOOT}
            assert judgement.severity in allowed, judgement
            decides_at_once = judgement.reason in DECIDED_AT_ONCE and not judgement.flickers
            assert judgement.flickers == reason.flickers or decides_at_once, judgement
        if isinstance(judgement, Finding | Unobserved | TooEarly):
            assert _is_subject(judgement.subject) or (judgement.subject == "" and not isinstance(judgement, Finding)), (
                judgement
            )
        for text in _texts(judgement):
            assert len(text) <= LONGEST_DETAIL, judgement
            assert text.isprintable(), judgement


def _is_subject(subject: str) -> bool:
    return subject in WITHOUT_A_NAME or any(subject.startswith(kind) and subject != kind for kind in KINDS)


def _texts(judgement: Judgement) -> tuple[str, ...]:
    if isinstance(judgement, Passed):
        return ()
    return (
        (judgement.what, judgement.expected, judgement.source)
        if isinstance(judgement, Observation)
        else (judgement.detail,)
    )
