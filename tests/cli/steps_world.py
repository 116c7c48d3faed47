"""Model of a node on which the commands of its next step are run as printed: what each changes on the node."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_healthcheck.cli.node_step import node_step
from gpu_healthcheck.healthcheck.cluster.nodes import node_state
from gpu_healthcheck.healthcheck.deep.attempts import is_rebooted_at_once
from gpu_healthcheck.healthcheck.deep.reset_plan import reset_targets, why_not_reboot, why_not_reset
from gpu_healthcheck.healthcheck.memory.reason_names import SLOW
from gpu_healthcheck.healthcheck.model import Finding, Severity, Status
from gpu_healthcheck.healthcheck.node.state import NodeState
from gpu_healthcheck.healthcheck.operations.next_step import NextStep
from gpu_healthcheck.healthcheck.verdict import record as records
from gpu_healthcheck.healthcheck.verdict.record import LEVEL_4, StandingRecord
from gpu_healthcheck.quarantine.recommendation import GroupResult, RunResult, recommend

P = "gpu-healthcheck.aws-samples.io"
GPU = "gpu/0000:18:00.0"
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
BOOT = "00000000-0000-4000-8000-{:012}"
REPLACED, PERSON, HEALTHY = "replaced", "a person", "healthy"
READS = re.compile(r"gpu-healthcheck (explain|diagnose node|status) \S+\Z|kubectl (get pods|describe node) .*\Z")
REPLACES = re.compile(r"kubectl (delete node n\Z|label nodes? n .*(fault|Repl))|aws autoscaling terminate-\S+ ")
CAUSES = {
    "silent": "kubectl get",
    "unready": "kubectl describe",
    "unobserved": "gpu-healthcheck explain of its value",
    "untestable": "gpu-healthcheck explain of its value",
    "unoffered": "gpu-healthcheck diagnose",
}
"""Fields with what a person can fix, and the beginning of the command that shows it."""
ESCALATES_AFTER, MOST_STEPS = 2, 20


@dataclass
class Fault:
    """A fault of the machine. `ends`: words for what ends it: reset, reboot, quarantine (a passed one), person."""

    reason: str
    severity: Severity
    ends: tuple[str, ...] = ()
    subject: str = GPU
    nature: str = "event"
    is_deep: bool = False
    """Whether only a quarantine finds it: its event ends, and the next run finds the same fault."""
    first: datetime = BEGIN
    last: datetime = BEGIN
    at: float = 0.0
    """Seconds of the boot at the last observation."""
    boot: int = 1
    count: int = 1


@dataclass
class Walk:
    """A node, and a person who types what is printed, and who fixes what a command that only reads has shown.

    `reset` and `reboot` are the outcomes of these commands: works, fails or refused.
    """

    faults: list[Fault] = field(default_factory=list)
    reset: str = "works"
    reboot: str = "works"
    cordon: str = ""
    """Owner: '', ours or person."""
    silent: bool = False
    unready: bool = False
    unobserved: str = ""
    """Cause for which a check of the agent can't run."""
    untestable: str = ""
    """Cause for which a quarantine proves nothing."""
    unoffered: bool = False
    """Whether the device plugin offers no GPU."""
    withheld: bool = False
    fixable: bool = True
    """Whether a person can fix the causes that commands show."""
    labels: dict[str, str] = field(default_factory=dict)
    provider: str = "metal://rack-7"
    has_verdict: bool = True
    recommendation: str = ""
    """Recommendation of an earlier quarantine."""
    boot: int = 1
    now: datetime = BEGIN
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    hidden: list[Fault] = field(default_factory=list)
    """Faults that only a quarantine finds."""
    commands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hidden = [fault for fault in self.faults if fault.is_deep]
        self.faults = [fault for fault in self.faults if not fault.is_deep]
        if self.recommendation:
            self.now += timedelta(minutes=1)
            self._write("quarantine-result", recommendation=self.recommendation, unobserved=self._untested())

    # --- the walk

    def end(self) -> str:
        """Follow the steps to their end. Raise AssertionError for a step that is repeated in an unchanged state."""
        seen: set[str] = set()
        for _ in range(MOST_STEPS):
            step = self.step()
            if not step.commands:
                return self._end_without_command(step)
            state = repr((self._state(), step.commands))
            assert state not in seen, (step, self.commands)
            seen.add(state)
            before = repr(self._state())
            if "Fix that before" in step.note and not self.fixable:
                return PERSON
            if "changed nothing (step 'free the GPUs'" in step.note:
                self.reset = "works"
            for command in step.commands:
                self.commands.append(command)
                self.now += timedelta(minutes=10)
                end = self._type(command)
                if end == REPLACED:
                    return end
                if end:  # it failed, and && runs no further command
                    break
            if all(map(READS.match, step.commands)) and repr(self._state()) == before:
                return PERSON
        raise AssertionError(self.commands)

    def step(self) -> NextStep:
        node = self.node()
        record = records.on_node(StandingRecord, node, f"{P}/results")
        return node_step(node, record, self.silent or self.unready, self.now)

    def _end_without_command(self, step: NextStep) -> str:
        is_healthy = self.status in ("pass", "warn") and not (self.cordon or self.silent or self.unoffered)
        if is_healthy and not step.note:
            return HEALTHY
        assert step.note, self.commands
        return PERSON

    def _state(self) -> Any:
        runs = {
            kind: [*map(run.get, ("status", "recommendation", "reasons", "boot_id")), len(run.get("steps", ()))]
            for kind, run in self.runs.items()
        }
        faults = [(fault.reason, fault.severity, fault.count) for fault in self.faults]
        causes = [getattr(self, cause) for cause in CAUSES]
        return self.has_verdict, faults, self.boot, self.cordon, runs, causes, self.labels, self.ended

    # --- the node

    @property
    def status(self) -> str:
        worst = max((fault.severity for fault in self.faults), default=Severity.PASS)
        if worst >= Severity.RESET:
            return "fail"
        return "unknown" if self.unobserved else "warn" if worst is Severity.MONITOR else "pass"

    def node(self) -> NodeState:
        worst = max((fault.severity for fault in self.faults), default=Severity.PASS)
        is_withheld = self.withheld and worst >= Severity.RESET
        results = {
            "schema": 1,
            "boot_id": BOOT.format(self.boot),
            "findings": [self._row(fault) for fault in self.faults],
            "unobserved": [{"check": "0-nvidia-smi", "cause": self.unobserved}] if self.unobserved else [],
            "taint": "withheld" if is_withheld else "set" if worst >= Severity.RESET else "",
        }
        verdict = {f"{P}/status": self.status, f"{P}/severity": worst.name} if self.has_verdict else {}
        annotations = {f"{P}/{kind}": json.dumps(run) for kind, run in self.runs.items()}
        annotations |= {f"{P}/results": json.dumps(results)} if self.has_verdict else {}
        annotations |= {f"{P}/cordoned-by": "gpu-quarantine-n"} if self.cordon == "ours" else {}
        owner = "gpu-healthcheck" if self.cordon == "ours" else "kubectl"
        owned = {"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:annotations": {f"f:{P}/cordoned-by": {}}}}
        taint = {"key": f"{P}/unhealthy", "value": "true", "effect": "NoSchedule"}
        return node_state(
            {
                "metadata": {
                    "name": "n",
                    "labels": {**self.labels, **verdict},
                    "annotations": annotations,
                    "managedFields": [
                        {"manager": owner, "time": "2026-11-21T12:00:00Z", "fieldsV1": owned if self.cordon else {}}
                    ],
                },
                "spec": {
                    "providerID": self.provider,
                    "unschedulable": bool(self.cordon),
                    "taints": [taint] if worst >= Severity.RESET and not is_withheld else [],
                },
                "status": {
                    "nodeInfo": {"bootID": BOOT.format(self.boot)},
                    "capacity": {"nvidia.com/gpu": "8"},
                    "allocatable": {"nvidia.com/gpu": "0" if self.unoffered else "8"},
                    "conditions": [{"type": "Ready", "status": "Unknown" if self.unready else "True"}],
                },
            }
        )

    def _row(self, fault: Fault) -> dict[str, Any]:
        row = {key: getattr(fault, key) for key in ("reason", "subject", "nature", "count")}
        times = {"first_seen": _text(fault.first), "last_seen": _text(fault.last), "at": fault.at}
        earlier = {} if fault.boot == self.boot else {"boot_id": BOOT.format(fault.boot)}
        return {**row, **times, **earlier, "severity": fault.severity.name}

    def _write(self, kind: str, **fields: Any) -> None:
        run = {"schema": 1, "timestamp": _text(self.now), "by": "x", "boot_id": BOOT.format(self.boot), **fields}
        self.runs[kind] = run

    # --- the commands

    def _type(self, command: str) -> str:
        """Change the node as the command does. Return REPLACED at that end, and any other text if it failed."""
        if READS.match(command):
            self._read(command)
            return ""
        if REPLACES.match(command):
            return REPLACED
        if command == "gpu-healthcheck quarantine n":
            return self._quarantine()
        if command in ("gpu-healthcheck reset n", "gpu-healthcheck reset n --reboot"):
            return self._reset(reboots=command.endswith("--reboot"))
        if command == "kubectl uncordon n":
            assert self.cordon == "ours", "a person's cordon is theirs"
            self.cordon = ""
        elif command in ("kubectl cordon n", "kubectl drain n --ignore-daemonsets --delete-emptydir-data"):
            assert not self.cordon
            self.cordon = "person"
        elif command.startswith("aws ec2 reboot-instances --instance-ids i-") or "PendingReboot" in command:
            if "PendingReboot" in command and self.reboot != "works":  # NodeRecovery is not Automatic
                self.labels["sagemaker.amazonaws.com/node-health-status"] = "UnschedulablePendingReboot"
            else:
                self._boot()
        else:
            raise AssertionError(f"nobody can type {command!r}")
        return ""

    def _read(self, command: str) -> None:
        """Let the person fix what a command has shown, if they can."""
        self.has_verdict = True
        word = command.rpartition(" ")[2]
        for cause, shown in CAUSES.items():
            if self.fixable and (command.startswith(shown) or getattr(self, cause) == word):
                setattr(self, cause, type(getattr(self, cause))())
        ended = [fault for fault in self.faults if "person" in fault.ends and fault.reason == word and self.fixable]
        self.faults = [fault for fault in self.faults if fault not in ended]

    def _quarantine(self) -> str:
        self.cordon = self.cordon or "ours"
        found = [] if self.untestable else self.hidden
        for fault in found:
            self._find(fault)
        measured = [fault for fault in self.faults if fault.reason in SLOW and fault not in self.hidden]
        for fault in () if self.untestable else measured:
            fault.count, fault.last = fault.count + 1, self.now
        now = [fault for fault in self.faults if fault.nature == "level" or fault in found or fault in measured]
        if not (now or self.untestable):
            self.faults = [fault for fault in self.faults if "quarantine" not in fault.ends]
        standing = [fault for fault in self.faults if fault not in now]
        is_faulty = any(fault.severity >= Severity.RESET for fault in found)
        status = Status.UNKNOWN if self.untestable else Status.FAIL if is_faulty else Status.PASS
        result = RunResult((GroupResult(LEVEL_4, status),), tuple(map(_finding, now)), tuple(map(_finding, standing)))
        recommendation = recommend(result).recommendation.value
        self._write(
            "quarantine-result", status=status.value, recommendation=recommendation, unobserved=self._untested()
        )
        return "" if recommendation == "return-to-service" else "another recommendation"

    def _untested(self) -> list[dict[str, str]]:
        return [{"check": LEVEL_4, "cause": self.untestable, "detail": "x"}] if self.untestable else []

    def _find(self, fault: Fault) -> None:
        if fault in self.faults:
            fault.count += 1
        else:
            fault.first, fault.boot, fault.count = self.now, self.boot, 1
            self.faults.append(fault)
        fault.last = self.now
        if self.ended.get(fault.reason, 0) >= ESCALATES_AFTER:
            fault.severity = Severity.ISOLATE

    def _reset(self, *, reboots: bool) -> str:
        node = self.node()
        why_not = why_not_reboot if reboots else why_not_reset
        targets = reset_targets(node, ())
        assert list(why_not(node, targets, "gpu-reset-n", self.now, force=False)) == []
        steps = [{"step": "claim", "at": _text(self.now)}]
        gpus = [{"address": target.name} for target in targets]
        if not (reboots and is_rebooted_at_once(node, targets, force=False)):
            outcome = self.reset
            if outcome == "works":
                self._end_by("reset")
                self._write("reset-result", status="pass", steps=steps, gpus=gpus)
                return ""
            if outcome == "refused" or not reboots:
                status = "unknown" if outcome == "refused" else "fail"
                why = "step 'free the GPUs': in use by process 7" if outcome == "refused" else "step 'reset': failed"
                self._write("reset-result", status=status, steps=steps, gpus=gpus, reasons=[why])
                return outcome
        if self.reboot == "works":
            self._boot()
            steps.append({"step": "reboot", "at": _text(self.now)})
            self._write("reset-result", status="pass", steps=steps, gpus=gpus)
            return ""
        if self.reboot == "fails":
            steps.append({"step": "drain the node", "at": _text(self.now), "detail": "8 pods evicted"})
        status = "fail" if self.reboot == "fails" else "unknown"
        self._write("reset-result", status=status, steps=steps, gpus=gpus, reasons=["step 'plan': no systemd"])
        return self.reboot

    def _end_by(self, way: str) -> None:
        for fault in [fault for fault in self.faults if way in fault.ends]:
            self.ended[fault.reason] = self.ended.get(fault.reason, 0) + 1
            self.faults.remove(fault)

    def _boot(self) -> None:
        self.boot += 1
        self._end_by("reboot")
        for fault in self.faults:  # a level that the first check cycle observes again
            if fault.nature == "level":
                fault.boot, fault.at, fault.last = self.boot, 60.0, self.now + timedelta(minutes=1)


def _text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _finding(fault: Fault) -> Finding:
    return Finding(fault.reason, fault.severity, fault.subject, detail="x")
