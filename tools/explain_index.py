"""Reasons, causes, checks, settings, metrics and alerts that `explain` knows, for cli/index.json."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpu_healthcheck.agent.telemetry import Telemetry
from gpu_healthcheck.cli.index import REASON, SETTING, Declared, IndexEntry, KnownText
from gpu_healthcheck.diagnosis.causes import CAUSES as DIAGNOSES
from gpu_healthcheck.diagnosis.causes.components import HINTS
from gpu_healthcheck.diagnosis.causes.pod_startup_table import START_FIXES
from gpu_healthcheck.diagnosis.causes.unscheduled import refused
from gpu_healthcheck.healthcheck import checks
from gpu_healthcheck.healthcheck.captures import capture_files as captures
from gpu_healthcheck.healthcheck.catalog.policy import RELOAD, STEPS
from gpu_healthcheck.healthcheck.catalog.profiles import PROFILES_FILE
from gpu_healthcheck.healthcheck.checks import CHECKS, DEEP_CHECKS, GROUPS, SHORT_NAMES, dcgm_diag
from gpu_healthcheck.healthcheck.deep import causes as deep
from gpu_healthcheck.healthcheck.memory.kernel_events import REPEATS, REPEATS_FROM
from gpu_healthcheck.healthcheck.model import Severity, UnobservedCause
from gpu_healthcheck.healthcheck.settings.declaration import NodeSettings, by_key, settings_of, written
from gpu_healthcheck.healthcheck.verdict.acknowledgement import UNEXPLAINED

_PROFILES = "Expected devices of an instance type, one type per line: type|gpus|efa|nvlink|provider[|roce]."
_FINDINGS, _CAUSES, _ALERTS = "docs/findings.md", "docs/causes.md", "docs/alerts.md"
_ROOT = Path(__file__).parents[1]


CAUSES: tuple[UnobservedCause, ...] = (*checks.CAUSES, *captures.CAUSES, *deep.CAUSES)
"""All causes why a check could not run, in the order of docs/could-not-check.md."""

_NONE_FITS = r"nodes are (?:un)?available: .{0,2000}"
_OF_EVENTS = (
    ("kube-scheduler", rf"{_NONE_FITS}Insufficient nvidia\.com/", "GpusAllInUse"),
    ("kube-scheduler", rf"{_NONE_FITS}Insufficient nvidia\.com/", "MoreGpusThanAnyNodeHas"),
    *(
        ("kube-scheduler", rf"{_NONE_FITS}had (?:untolerated )?taint{pattern}", cause.name)
        for pattern, cause in refused.taint_texts()
    ),
    ("kube-scheduler", rf"{_NONE_FITS}were unschedulable", "NodeCordoned"),
    ("kube-scheduler", rf"{_NONE_FITS}(?:node affinity/selector|match node selector)", "NodeSelectorMatchesNoNode"),
    ("kube-scheduler", rf"{_NONE_FITS}cannot allocate all claims", "ClaimNotSatisfied"),
    ("kube-scheduler", r"unbound (?:immediate )?PersistentVolumeClaims", "VolumeClaimNotBound"),
    ("kubelet", r"failed (?:liveness|startup) probe|(?:Liveness|Startup) probe failed", "LivenessProbeKills"),
    ("kubelet", r"NodePrepareResources|prepare dynamic resources", "ClaimNotPrepared"),
    ("kubelet", r"MountVolume\.|AttachVolume\.", "VolumeNotMounted"),
)
"""Messages of events from which a search concludes on a cause with other facts, each with the likeliest causes."""
_OF_IMAGES = "pull|image|registry|manifest|repository"
_CONTEXTS = {
    **dict.fromkeys(("ImagePullUnauthorized", "ImageNotFound", "ImageDiskFull"), _OF_IMAGES),
    "PodNetworkFails": r"sandbox|\bcni\b|\bIPAM\b|network ?plugin|NetworkNotReady|plugin type=",
    "DeviceUnknownToPlugin": "allocat",
}
"""Words that a message must also have: `diagnose` searches the texts of these causes in one kind of message alone."""
_REPEATED = {
    repeated: f"{REPEATS_FROM} processes met {xid} within a day on this GPU, and on no other: suspect the GPU, and "
    "quarantine the node once it is free."
    for xid, repeated in REPEATS.items()
}


_EVENTS = {
    "EvictionAnnounced": "The program evict will evict the pod at the named time, because its GPU is faulty: let it "
    "write a checkpoint. The eviction is cancelled if the fault ends before.",
    "EvictionRequested": "The delay has passed, and the program evict has requested the pods' eviction.",
    "EvictionRefused": "A PodDisruptionBudget, a webhook or a missing permission refuses the eviction of a pod with a "
    "faulty GPU. It is retried. Change the budget or delete the pod; `gpu-healthcheck release`, or an empty "
    "EVICT_SEVERITY for the node group, ends the eviction.",
    "EvictionCancelled": "The fault ended before the pods were evicted: they stay.",
    "SlurmMustDrain": "The pod is a Slurm node on a faulty node. It is not evicted: drain it in Slurm "
    "(`scontrol update nodename=NAME state=drain reason=gpu`).",
    "evict": "The annotation with the announced, requested and refused evictions of a Node's pods, and the program "
    "that writes it: it evicts pods from faulty GPUs where EVICT_SEVERITY is set.",
}


def index_entries() -> Iterator[IndexEntry]:
    for cause in CAUSES:
        message = f"{cause.meaning} {cause.action}"
        yield IndexEntry(cause.name, "reason why a check could not run", message, "docs/could-not-check.md")
    for found in DIAGNOSES:
        yield IndexEntry(
            found.name,
            "a cause that diagnose finds",
            f"{found.means} {found.remedy}",
            f"{_CAUSES}#{found.name.lower()}",
        )
    steps = {severity.name: f"Action: {step}." for severity, step in STEPS.items()}
    steps[Severity.RESET.name] += f" For a switch or the driver: {RELOAD}."
    yield from _of("a severity", steps, _FINDINGS)
    yield from _alerts()
    yield from _of("a group of checks", _groups(), "docs/checks.md")
    yield from _of("a group of checks", _short_names(), "docs/commands.md#checks-by-name")
    yield from _checks()
    yield from _of(SETTING, dict(_settings()), "docs/settings.md")
    yield from _of("a metric of the agent", _metrics(), "docs/metrics.md")
    for name, meaning in _EVENTS.items():
        kind, more = ("an Event", "docs/evict.md") if name[0].isupper() else ("an annotation", "docs/record.md")
        yield IndexEntry(name, kind, meaning, more)
    yield from _of(REASON, _REPEATED, f"{_FINDINGS}#xid")
    yield IndexEntry(
        UNEXPLAINED,
        REASON,
        "A deep test failed without a readable finding: its record has only a severity.",
        f"{_FINDINGS}#{UNEXPLAINED.lower()}",
    )


def _of(kind: str, meanings: Mapping[str, str], more: str) -> Iterable[IndexEntry]:
    return (IndexEntry(name, kind, meaning, more) for name, meaning in meanings.items())


def _short_names() -> dict[str, str]:
    names = {check.name for check in (*CHECKS, *DEEP_CHECKS)}
    return {short: f"Short name of {name}." for short, name in SHORT_NAMES.items() if short not in names}


def _alerts() -> Iterator[IndexEntry]:
    """Yield each alert with its meaning and fix, by its heading in docs/alerts.md."""
    page = (_ROOT / _ALERTS).read_text(encoding="utf-8")
    for name, text in re.findall(r"(?ms)^### (\w+)\n\n(.*?)(?=^##|\Z)", page):
        meaning, _, rest = _plain(text).partition(" - Check: ")
        fix = rest.partition(" - Fix: ")[2]
        yield IndexEntry(name, "an alert", f"{meaning} {fix[:1].upper()}{fix[1:]}", f"{_ALERTS}#{name.lower()}")


def _plain(markdown: str) -> str:
    """Return Markdown as one line without links and emphasis."""
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("**", "").split())


def _checks() -> Iterator[IndexEntry]:
    """Yield each check, explained by the summary of its module."""
    for check in (*CHECKS, *DEEP_CHECKS):
        what, _, _ = (sys.modules[check.judge.__module__].__doc__ or "").strip().partition("\n\n")
        reasons = ", ".join(reason.name for reason in check.reasons)
        message = f"{' '.join(what.split())} Group: {check.group}. Reasons: {reasons}."
        yield IndexEntry(check.name, "a check", message, "docs/checks.md")


def _metrics() -> dict[str, str]:
    return {
        metric.name: f"{metric.meaning} ({', by '.join((metric.kind, *metric.labels))})"
        for metric in Telemetry().metrics
    }


def _groups() -> dict[str, str]:
    """Return each group with its checks; a group without checks belongs to another program."""
    checks = {
        group: [check.name for check in (*CHECKS, *DEEP_CHECKS) if check.group == group] for group in GROUPS.values()
    }
    return {group: f"Its checks: {', '.join(names) or 'none yet'}." for group, names in checks.items()}


def all_reasons() -> Iterator[Declared]:
    """Yield every reason except Xids and SXids, which are found by number."""
    for check in (*CHECKS, *DEEP_CHECKS):
        by_error = check in (dcgm_diag.LEVEL_2, dcgm_diag.LEVEL_4)
        for reason in check.reasons:
            if reason.name.lower() != check.name:
                yield Declared(reason, check.name, check.group, by_error)


def known_texts() -> Iterator[KnownText]:
    """Yield the messages of each cause, those that reasons quote as their source, and those of components' logs.

    A cause that takes any message of its kind is left out.
    """
    for cause in DIAGNOSES:
        for text in cause.texts:
            if not text.search(""):
                context = _CONTEXTS.get(cause.name)
                pattern = rf"\A(?=[\s\S]*(?:{context}))[\s\S]*(?:{text.pattern})" if context else text.pattern
                yield KnownText(pattern, text.writer, cause.name)
    for writer, pattern, name in _OF_EVENTS:
        yield KnownText(pattern, writer, name)
    for declared in all_reasons():
        writer = declared.reason.source.partition(":")[0]
        for quoted in re.findall(r"`([^`]+ [^`]+)`", declared.reason.source):
            yield KnownText(_pattern(quoted), writer, declared.reason.name)
    for writer, hints in (("the container runtime, NVIDIA's toolkit", START_FIXES), ("a component's log", HINTS)):
        yield from (KnownText(each.pattern, writer, fix=each.fix) for each in hints)


def _pattern(quoted: str) -> str:
    """Return the pattern of a quoted message: N and M are numbers in it, … any text."""
    return re.sub(r"\b[NM]\b", r"\\d+", re.escape(quoted)).replace("…", ".{1,200}")


def defaults() -> dict[str, str]:
    return {key: written(value) for key, value in by_key(NodeSettings()).items()}


def _settings() -> Iterator[tuple[str, str]]:
    """Yield key and meaning of each key of the ConfigMap; the meaning ends with bounds and default."""
    for key, setting in settings_of(NodeSettings).items():
        details = [setting.allowed] if setting.bounds else []
        if setting.default != "":
            details.append(f"default {setting.written_default}")
        yield key, f"{setting.meaning} ({', '.join(details)})" if details else setting.meaning
    yield PROFILES_FILE, _PROFILES
