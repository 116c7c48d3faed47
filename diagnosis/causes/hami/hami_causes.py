"""Causes of HAMi that several families recognise, and the places in HAMi's source that all of them name."""

from __future__ import annotations

from diagnosis.model import Family, Link, Signature, TextSource, rejecting

WEBHOOK_FILE = "HAMi, pkg/scheduler/webhook.go"
CHART = "HAMi's chart, templates/scheduler"
PLUGIN_FILES = "HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin"
_admitted = Family(Link.ADMITTED)


def codes(*names: str) -> Signature:
    """Return the codes by which HAMi's filter names the cause, including those for other vendors' cards."""
    return Signature("|".join(names), "HAMi's scheduler", frozenset((TextSource.EVENT,)))


PRIVILEGED = _admitted(
    "HamiSkipsPrivileged",
    "A container that requests GPUs is privileged: HAMi up to 2.9 ignores it, HAMi since 2.10 refuses the pod.",
    "Remove privileged from the container's securityContext: card limits have no effect on privileged containers.",
    source=f"{WEBHOOK_FILE}: `container … is privileged`",
)
NODE_NAMED = _admitted(
    "HamiNodeNamed",
    "A GPU workload sets nodeName, which bypasses HAMi's scheduler: HAMi's webhook or device plugin refuses the pods.",
    "Remove nodeName from the pod template, and select the node by a nodeSelector.",
    rejecting(r"do not use nodeName in task spec", PLUGIN_FILES),
    source=f"{WEBHOOK_FILE}: `pod has node assigned`, since 2.6; `do not use nodeName in task spec` before",
)
QUOTA = _admitted(
    "HamiQuotaExceeded",
    "The namespace has used up its ResourceQuota of card memory or cores, as HAMi counts it.",
    "Delete pods of the namespace, request less, or raise the quota.",
    codes("ResourceQuotaNotFit"),
    source="HAMi counts limits.nvidia.com/gpumem and limits.nvidia.com/gpucores of a ResourceQuota itself",
)
