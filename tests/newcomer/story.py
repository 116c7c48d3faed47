"""Install, see a fault, follow its alert, quarantine, release, upgrade, go back, uninstall: and nothing stays."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import yaml

from gpu_healthcheck.sim.real_node.agent_pod import GIVE_UP_SECONDS, NAMESPACE
from gpu_healthcheck.sim.real_node.images import OURS, REPOSITORY
from gpu_healthcheck.sim.real_node.waiting import wait_until
from tests.newcomer.traces import settled, traces
from tests.newcomer.typed import shown
from tests.newcomer.ways import (
    ALERTS,
    CHANGED,
    CHART,
    FINDINGS,
    HELM_SETS,
    INSTALL,
    README,
    REGISTRY,
    RUNBOOK,
    UNINSTALL,
    Way,
    lay_out,
)
from tests.node.stage import GPU
from tests.node.test_suspect_node import ADDED, TEMPLATE
from tools.rules import plain_rules

if TYPE_CHECKING:
    from tests.node.stage import Stage

_CONFIGURED = ("get", "configmap", "gpu-healthcheck-config", "--output=jsonpath={.data.CHECK_INTERVAL}")
_DELETES = re.compile(r"^  (kubectl delete .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Newcomer:
    """A user on a node with our image; commands are typed in their own checkout."""

    stage: Stage
    way: Way

    def type(self, document: str, begins: str, more: str = "", answers: str = "") -> str:
        """Return the output. Raises RealNodeError if the command fails."""
        words = {"NODE": self.stage.node.name, "REGISTRY": REGISTRY, "IMAGE": OURS}
        return self.run(shown(document, begins, words) + more, answers)

    def run(self, line: str, answers: str = "") -> str:
        print(f"$ {line}", flush=True)
        folder = self.stage.node.folder / "checkout"
        return self.stage.node.run("sh", "-ec", f"cd {folder}; {line}", input=answers).stdout

    def hour(self) -> None:
        """Raises AssertionError where something is not as the documents say, or stays."""
        before = settled(self.stage.node)
        lay_out(self.stage.node.folder / "checkout")
        self.install()
        self.see_a_fault()
        self.follow_the_alert()
        self.quarantine()
        self.upgrade_and_go_back()
        self.uninstall()
        wait_until(lambda: traces(self.stage.node) <= before, GIVE_UP_SECONDS, lambda: self._stays(before))
        print(f"{self.way.name}: nothing stays", flush=True)

    def install(self) -> None:
        if self.way.prepare:
            self.type(*self.way.prepare)
        self.type(*self.way.install)
        self.type(INSTALL, "gpu-healthcheck verify")
        if self.way.name == "helm":
            self.type(CHART, "helm test")
        listed = self.type(README, "kubectl get nodes -L")
        assert listed.split()[-2:] in (["pass", "PASS"], ["warn", "MONITOR"]), listed

    def see_a_fault(self) -> None:
        self.stage.host.xid(3, 79, "GPU has fallen off the bus.")
        self.stage.wait_for_taint()
        assert "Xid79" in self.type(README, "gpu-healthcheck status")
        assert "reboot" in self.type(README, "gpu-healthcheck explain Xid79")

    def follow_the_alert(self) -> None:
        """To the heading that it names, and from there to the node's."""
        rules = yaml.safe_load(plain_rules())["groups"]
        (alert,) = (entry for group in rules for entry in group["rules"] if entry.get("alert") == "GpuNodeFault")
        page, _, anchor = alert["annotations"]["runbook_url"].partition("/blob/main/")[2].partition("#")
        assert (page, anchor) == (ALERTS, alert["alert"].lower())
        assert f"\n### {alert['alert']}\n" in (REPOSITORY / page).read_text()
        assert "\n## Xid\n" in (REPOSITORY / FINDINGS).read_text()

    def quarantine(self) -> None:
        """Use stand-ins for the parts of DCGM's base image and a device plugin."""
        self.stage.host.install_dcgmi()
        self.stage.host.install_nccl_tests()
        template = {"spec": {"jobTemplate": {"spec": {"template": {"spec": ADDED}}}}}
        self.stage.kubectl("patch", TEMPLATE, "--type=strategic", f"--patch={json.dumps(template)}")
        self._offer_gpus("8")
        message = self.type(README, "gpu-healthcheck quarantine NODE")
        assert "recommendation: return-to-service" in message, message
        self.type(RUNBOOK, "gpu-healthcheck release NODE")
        self.stage.wait(lambda node: not node.tainted and not node.object["spec"].get("unschedulable"))
        self._offer_gpus(None)

    def upgrade_and_go_back(self) -> None:
        """With a fault standing, to another setting."""
        self.stage.host.xid(3, 48, "An uncorrectable double bit error (DBE) has been detected on GPU.")
        self.stage.wait_for_taint()
        was = self.stage.kubectl(*_CONFIGURED)
        self._edit(self.way.unset, self.way.changed)
        self.type(*self.way.upgrade, more="" if self.way.file else HELM_SETS)
        self._looks()
        assert self.stage.kubectl(*_CONFIGURED) == CHANGED != was
        self._edit(self.way.changed, self.way.unset)
        self.type(*self.way.back)
        self._looks()
        assert self.stage.kubectl(*_CONFIGURED) == was
        assert self.stage.view().tainted

    def uninstall(self) -> None:
        self.type(UNINSTALL, "kubectl delete mutatingadmissionpolicybindings")
        self.type(*self.way.stop)
        wait_until(lambda: not self.stage.pod.all(), GIVE_UP_SECONDS, lambda: "an agent's pod does not end")
        assert "accepts work again" in self.type(UNINSTALL, "gpu-healthcheck uninstall --dry-run")
        message = self.run("gpu-healthcheck uninstall", answers="y\n")
        (deletes,) = _DELETES.findall(message)
        self.run(deletes)
        if self.way.name == "helm":
            self.type(UNINSTALL, "kubectl delete namespace")
        self.type(UNINSTALL, "kubectl debug node/NODE")
        self.type(UNINSTALL, "kubectl wait pods -l app.kubernetes.io/managed-by=kubectl-debug")
        self.type(UNINSTALL, "kubectl delete pods -l app.kubernetes.io/managed-by=kubectl-debug")

    def _edit(self, before: str, after: str) -> None:
        if self.way.file:
            file = self.stage.node.folder / "checkout" / self.way.file
            text = file.read_text()
            assert before in text
            file.write_text(text.replace(before, after))

    def _looks(self) -> None:
        self.run(f"kubectl rollout status -n {NAMESPACE} daemonset/gpu-healthcheck-agent")
        self.stage.wait_for_heartbeat(datetime.now(UTC))

    def _offer_gpus(self, number: str | None) -> None:
        patch = json.dumps({"status": {"capacity": {GPU: number}}})
        name = self.stage.node.name
        self.stage.node.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def _stays(self, before: set[str]) -> str:
        return "\n".join(["these stay:", *sorted(traces(self.stage.node) - before)])
