"""CDI specifications compared with the node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_healthcheck.healthcheck.checks.cdi_specs import CHECK
from gpu_healthcheck.healthcheck.model import NotConfigured
from gpu_healthcheck.healthcheck.probes.container_runtime.facts import CdiSpec, ConfigurationProblem, Toolkit
from tests.checks.runtimes import NVIDIA, RUNC, SPEC, finding, judge, reasons, running, runtime, seen

STALE = replace(SPEC, missing=("/dev/nvidia9",))
STATIC = replace(STALE, path="/etc/cdi/nvidia.yaml")
PLUGINS = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
AGAIN = f"`systemctl restart nvidia-cdi-refresh` or `nvidia-ctk cdi generate --output={SPEC.path}`"


def runtime_with(*specs: CdiSpec, **more: Any) -> Any:
    return runtime(RUNC, NVIDIA, **{"cdi": True, "cdi_specs": specs, **more})


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (("/dev/nvidia9",), "/dev/nvidia9"),
        (tuple(f"/lib/{number}" for number in range(6)), "/lib/0, /lib/1, /lib/2, /lib/3 and 2 more"),
    ],
)
def test_missing_file_is_named(missing: tuple[str, ...], named: str) -> None:
    assert judge(CHECK, runtime_with(replace(SPEC, missing=missing))) == [
        finding("CdiSpecStale", f"{SPEC.path} (nvidia.com/gpu) names {named}, not found; {AGAIN}")
    ]


def test_specification_of_existing_files_is_healthy() -> None:
    assert judge(CHECK, runtime_with(SPEC)) == []


@pytest.mark.parametrize(
    ("more", "judged"),
    [
        ({}, True),
        ({"cdi": False}, False),
        ({"cdi": False, "live": running(RUNC, NVIDIA, cdi=True)}, True),
        ({"live": running(RUNC, NVIDIA)}, False),
        ({"cdi": False, "toolkit": Toolkit("/t", "cdi")}, True),
        ({"cdi": False, "toolkit": Toolkit("/t", "legacy")}, False),
        ({"cdi_specs": ()}, False),
    ],
)
def test_only_specifications_in_use_are_judged(more: dict[str, Any], judged: bool) -> None:
    nobody = [NotConfigured("no NVIDIA CDI specification is in use")]
    findings = judge(CHECK, runtime_with(STALE, **more))
    assert (findings, reasons(findings)) == (findings if judged else nobody, ["CdiSpecStale"] if judged else [])


@pytest.mark.parametrize(
    ("other", "hidden"),
    [
        (SPEC, True),
        (replace(SPEC, devices=("0", "all", "1")), True),
        (replace(SPEC, devices=("0",)), False),
        (replace(SPEC, kind="other.nvidia.com/gpu"), False),
        (replace(SPEC, path="/etc/cdi/other.yaml"), False),
        (replace(SPEC, path="/elsewhere/nvidia.yaml"), False),
        (replace(SPEC, problem=ConfigurationProblem(SPEC.path, "x", only_ours=True)), False),
    ],
)
def test_a_spec_overridden_by_a_later_folder_is_unused(other: CdiSpec, hidden: bool) -> None:
    assert (reasons(judge(CHECK, runtime_with(STATIC, other))) == []) is hidden


def test_a_static_one_is_made_again_in_its_place() -> None:
    assert judge(CHECK, runtime_with(STATIC)) == [
        finding(
            "CdiSpecStale",
            "/etc/cdi/nvidia.yaml (nvidia.com/gpu) names /dev/nvidia9, not found;"
            " `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
        )
    ]


def test_the_device_plugins_is_its_own() -> None:
    spec = replace(STALE, path=PLUGINS, kind="k8s.device-plugin.nvidia.com/gpu")
    [found] = judge(CHECK, runtime_with(spec))
    assert "nvidia-ctk" not in str(found)
    assert "device plugin" in str(found)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"live": running(RUNC, NVIDIA, cdi=True, not_ready="x")}, "first follow the advice of RuntimeNotReady"),
        ({"cri_disabled": True}, "first correct the faults RuntimeCriDisabled"),
    ],
)
def test_plugin_pod_is_not_deleted_while_none_can_start(more: dict[str, Any], message: str) -> None:
    spec = replace(STALE, path=PLUGINS, kind="k8s.device-plugin.nvidia.com/gpu")
    [found] = judge(CHECK, runtime(RUNC, NVIDIA, cdi=True, cdi_specs=(spec,), **more))
    assert message in str(found)
    assert "delete" not in str(found)


@pytest.mark.parametrize("only_ours", [True, False])
def test_unreadable_specification_is_reported_with_its_path(only_ours: bool) -> None:
    spec = CdiSpec(SPEC.path, problem=ConfigurationProblem(SPEC.path, "expected ',' or ']'", 3, 5, only_ours))
    malformed = finding("CdiSpecMalformed", f"{SPEC.path}, line 3, column 5: expected ',' or ']'; {AGAIN}")
    assert judge(CHECK, runtime_with(spec)) == ([] if only_ours else [malformed])


def test_all_of_one_fault_are_one_finding() -> None:
    """Active findings are kept by reason and subject: otherwise the last would hide the others."""
    specs = [replace(STALE, path=f"/var/run/cdi/{number}.yaml", kind=f"{number}.nvidia.com/gpu") for number in range(6)]
    [found] = judge(CHECK, runtime_with(*specs))
    assert [f"/{number}.yaml (" in str(found) for number in range(6)] == [True] * 4 + [False] * 2
    assert "; and 2 more" in str(found)


def test_it_tells_them() -> None:
    broken = CdiSpec(PLUGINS, problem=ConfigurationProblem(PLUGINS, "x"))
    assert seen(CHECK, runtime_with(SPEC, broken))[0].what == (
        f"{SPEC.path}: 2 devices of nvidia.com/gpu, {PLUGINS}: unreadable"
    )
