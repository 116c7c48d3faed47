"""The life of a release on a real API server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_healthcheck.healthcheck import __version__
from gpu_healthcheck.sim.control_plane import Answer, ControlPlane
from tests.chart.conftest import Helm
from tests.cli.cluster import run_here
from tests.newcomer.typed import shown
from tests.waiting import eventually
from tools.chart import CHART

DIGEST = f"sha256:{'0' * 64}"
CONFIG = "/api/v1/namespaces/gpu-healthcheck/configmaps/gpu-healthcheck-config"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-healthcheck/leases"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
IMAGE = f"{ADMISSION}/validatingadmissionpolicies/gpu-healthcheck-sweeper-jobs"
BINDING = f"{ADMISSION}/validatingadmissionpolicybindings/gpu-healthcheck-agent-nodes"
VERIFY = "/api/v1/namespaces/gpu-healthcheck/pods/gpu-healthcheck-verify"
RIGHTS = "clusterroles,clusterrolebindings,roles,rolebindings"
OTHERS = "validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses,daemonsets,cronjobs,configmaps"


@dataclass(frozen=True)
class Release:
    plane: ControlPlane
    helm: Helm

    def done(self, *words: str) -> str:
        made = self.helm(f"--kubeconfig={self.plane.kubeconfig}", *words)
        assert made.returncode == 0, made.stderr
        return made.stdout

    def refused(self, *words: str) -> str:
        made = self.helm(f"--kubeconfig={self.plane.kubeconfig}", *words)
        assert made.returncode != 0
        return made.stderr

    def read(self, path: str) -> Any:
        return self.plane.request("GET", path).body

    def names(self, kinds: str) -> list[str]:
        return [
            word for word in self.plane.kubectl("get", kinds, "-A", "-o", "name").split() if "gpu-healthcheck" in word
        ]


@pytest.mark.cluster
def test_chart_installs_upgrades_rolls_back_and_uninstalls(helm: Helm) -> None:
    with ControlPlane() as plane:
        release = Release(plane, helm)
        it_is_installed_with_its_policies_before_its_pods(release)
        verify_says_what_is_lacking(release)
        a_test_is_announced_in_two_hooks_and_its_permissions_are_removed(release)
        it_is_upgraded_and_rolled_back(release)
        a_namespace_that_allows_no_agent_is_refused(release)
        nothing_stays_of_it(release)


def it_is_installed_with_its_policies_before_its_pods(release: Release) -> None:
    message = release.done("install", "gpu-healthcheck", str(CHART), "--create-namespace")
    asked = [
        entry for entry in release.plane.audit() if entry["verb"] == "create" and entry["responseStatus"]["code"] == 201
    ]
    asked.sort(key=lambda entry: str(entry["requestReceivedTimestamp"]))
    made = [str(entry["objectRef"]["resource"]) for entry in asked]

    last = max(at for at, resource in enumerate(made) if resource.startswith("validatingadmissionpolic"))
    assert last < min(made.index("daemonsets"), made.index("cronjobs"))
    assert "pod-security.kubernetes.io/enforce=privileged" in message


def verify_says_what_is_lacking(release: Release) -> None:
    """Run `verify` with the account of the pod that `helm test` creates, and with no other rights."""
    hook = release.helm("template", "gpu-healthcheck", str(CHART), "--show-only=templates/tests/verify.yaml").stdout
    objects = list(yaml.safe_load_all(hook))
    (words,) = (entry["spec"]["containers"][0]["command"] for entry in objects if entry["kind"] == "Pod")
    rights = yaml.safe_dump_all(entry for entry in objects if entry["kind"] != "Pod")
    release.plane.kubectl("apply", "-f", "-", input=rights)
    mine = release.plane.account_kubeconfig("gpu-healthcheck-verify")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    heartbeat = {"metadata": {"name": "gpu-node-1"}, "spec": {"leaseDurationSeconds": 86400, "renewTime": now}}

    assert "no node has a label" in eventually(lambda: said_by_verify(mine, 1))
    release.plane.create_node("gpu-node-1", labels={"nvidia.com/gpu.present": "true"})
    assert "0 of 1 node has a live agent; without one: gpu-node-1" in said_by_verify(mine, 1)
    release.plane.request("POST", LEASES, heartbeat)
    assert "1 of 1 node has a live agent" in said_by_verify(mine, 0, words)
    release.plane.request("PATCH", BINDING, {"spec": {"validationActions": ["Audit"]}})
    assert "not in force: gpu-healthcheck-agent-nodes" in said_by_verify(mine, 1)
    release.plane.kubectl("delete", "-f", "-", input=rights)


def a_test_is_announced_in_two_hooks_and_its_permissions_are_removed(release: Release) -> None:
    """Its pod is played: there is no kubelet here."""
    for _ in range(2):
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(release.done, "test", "gpu-healthcheck")
            eventually(lambda: waits(release.plane.request("GET", VERIFY)))
            assert len(verifies(release)) == 4
            release.plane.request("PATCH", f"{VERIFY}/status", {"status": {"phase": "Succeeded"}})
        assert re.findall("TEST SUITE: *(.*)", future.result()) == [
            "gpu-healthcheck-verify",
            "gpu-healthcheck-verify-rights",
        ]
        assert verifies(release) == []


def waits(pod: Answer) -> bool:
    return pod.status == 200 and pod.body["status"].get("phase") == "Pending"


def verifies(release: Release) -> list[str]:
    return [name for name in release.names(RIGHTS) if name.endswith("/gpu-healthcheck-verify")]


def said_by_verify(kubeconfig: Path, code: int, words: Sequence[str] = ("gpu-healthcheck", "verify")) -> str:
    """'' where it ended with another code."""
    done = run_here(kubeconfig, *words[1:])
    return done.stdout if done.returncode == code else ""


def it_is_upgraded_and_rolled_back(release: Release) -> None:
    values = ("--set=settings.CHECK_INTERVAL=120", f"--set=image.digest={DIGEST}")
    release.done("upgrade", "gpu-healthcheck", str(CHART), *values)
    assert release.read(CONFIG)["data"]["CHECK_INTERVAL"] == "120"
    assert named_image(release) == f"gpu-healthcheck@{DIGEST}"
    assert release.read(BINDING)["spec"]["validationActions"] == ["Deny"]  # a person's change is reverted

    release.done("rollback", "gpu-healthcheck")
    assert "data" not in release.read(CONFIG)
    assert named_image(release) == f"gpu-healthcheck:{__version__}"


def named_image(release: Release) -> str:
    """Return the image in the policy, which limits a sweep's Jobs."""
    return str(json.loads(release.read(IMAGE)["spec"]["variables"][0]["expression"]))


def a_namespace_that_allows_no_agent_is_refused(release: Release) -> None:
    release.plane.kubectl("label", "namespace", "gpu-healthcheck", "pod-security.kubernetes.io/enforce=baseline")

    message = release.refused("upgrade", "gpu-healthcheck", str(CHART))
    assert "pod-security.kubernetes.io/enforce=privileged --overwrite" in message


@pytest.mark.cluster
def test_chart_upgrades_a_release_of_0_3_0(helm: Helm, tmp_path: Path) -> None:
    """Its values lack those that came later: `gate`, `resetAutomation`, `reset`."""
    with ControlPlane() as plane:
        release = Release(plane, helm)
        mine = ("--set=settings.CHECK_INTERVAL=120", "--create-namespace")
        release.done("install", "gpu-healthcheck", str(_chart_0_3_0(tmp_path)), *mine)
        gate = "--set=gate.enabled=true"
        assert "reset" in release.refused("upgrade", "gpu-healthcheck", str(CHART), "--reuse-values", gate)

        for page, begins in (("install.md", "helm upgrade"), ("gate.md", "helm upgrade")):
            line = shown(f"docs/{page}", begins, {"charts/gpu-healthcheck": str(CHART)})
            words = line.removeprefix("helm ").split()
            if not plane.mutating_policies and gate.removeprefix("--set=") in words:
                continue
            release.done(*words)
            assert release.read(CONFIG)["data"] == {"CHECK_INTERVAL": "120"}
        if plane.mutating_policies:
            assert "gpu-healthcheck-gate" in plane.kubectl("get", "mutatingadmissionpolicies", "-o", "name")


def _chart_0_3_0(folder: Path) -> Path:
    """Return this chart without the values, objects and requirements that 0.3.0 did not have."""
    copy = folder / "gpu-healthcheck"
    shutil.copytree(CHART, copy)
    later = ("gate", "resetAutomation", "reset")
    values = yaml.safe_load((copy / "values.yaml").read_text())
    schema = json.loads((copy / "values.schema.json").read_text())
    for name in later:
        del values[name], schema["properties"][name]
    schema["required"] = [name for name in schema["required"] if name not in later]
    (copy / "values.yaml").write_text(yaml.safe_dump(values))
    (copy / "values.schema.json").write_text(json.dumps(schema))
    for file in (copy / "templates").glob("*.yaml"):
        text = re.sub(r"\.Values\.(gate|resetAutomation)\.enabled", "false", file.read_text())
        file.write_text(text.replace(".Values.reset.tolerations", "false"))
    return copy


def nothing_stays_of_it(release: Release) -> None:
    release.done("uninstall", "gpu-healthcheck")

    assert release.names(f"{RIGHTS},{OTHERS}") == []
