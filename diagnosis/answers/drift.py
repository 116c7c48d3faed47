"""Compare two snapshots of a cluster: changes of everything that can stop a GPU pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot import Snapshot
from gpu_healthcheck.diagnosis.snapshot.nodes import Node
from gpu_healthcheck.diagnosis.snapshot.workloads import Workload

_LABELS = ("nvidia.com/", "feature.node.kubernetes.io/pci-10de", "hami.io/", "node.kubernetes.io/instance-type")
_NOISE = frozenset(("nvidia.com/gfd.timestamp",))
_RESOURCES = ("nvidia.com/", "amd.com/", "vpc.amazonaws.com/efa", "hugepages-")


class Change(Struct, frozen=True):
    """Change of one property. `before` or `after` is '' if it did not exist at that time."""

    subject: str
    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.what}: {self.before or '(none)'} → {self.after or '(none)'}"


def changes(old: Snapshot, new: Snapshot) -> tuple[Change, ...]:
    """Return the changes in kinds that both snapshots contain."""
    return tuple(_changes(old, new))


def _changes(old: Snapshot, new: Snapshot) -> Iterator[Change]:
    if old.sees("Node") and new.sees("Node"):
        before, after = ({node.subject: _of_node(node) for node in look.nodes} for look in (old, new))
        yield from _between(before, after)
    if old.sees("DaemonSet") and new.sees("DaemonSet"):
        before, after = ({daemon.subject: _of_daemon(daemon) for daemon in look.daemon_sets} for look in (old, new))
        yield from _between(before, after)
    if old.sees("RuntimeClass") and new.sees("RuntimeClass"):
        before, after = (
            {each.meta.subject: {"handler": each.handler} for each in look.runtime_classes} for look in (old, new)
        )
        yield from _between(before, after)


def _between(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> Iterator[Change]:
    for subject in sorted(old.keys() | new.keys()):
        if subject not in new:
            yield Change(subject, "gone", "there", "")
        elif subject not in old:
            yield Change(subject, "new", "", "there")
        else:
            before, after = old[subject], new[subject]
            for what in sorted(before.keys() | after.keys()):
                if before.get(what, "") != after.get(what, ""):
                    yield Change(subject, what, before.get(what, ""), after.get(what, ""))


def _of_node(node: Node) -> dict[str, str]:
    fields = {
        "container runtime": node.runtime,
        "kubelet": node.kubelet,
        "ready": str(node.ready).lower(),
        "cordoned": str(node.cordoned).lower(),
        "taints": ", ".join(sorted(map(str, node.taints))),
    }
    if node.handlers is not None:
        fields["runtime handlers"] = ", ".join(sorted(filter(None, node.handlers)))
    fields |= {
        f"label {key}": value
        for key, value in node.meta.labels.items()
        if key.startswith(_LABELS) and key not in _NOISE
    }
    fields |= {f"capacity {key}": value for key, value in node.capacity.items() if key.startswith(_RESOURCES)}
    return fields | {
        f"allocatable {key}": value for key, value in node.allocatable.items() if key.startswith(_RESOURCES)
    }


def _of_daemon(daemon: Workload) -> dict[str, str]:
    values = {}
    for container in daemon.spec.containers if daemon.spec is not None else ():
        values[f"image of {container.name}"] = container.image
        values |= {f"{name} of {container.name}": value for name, value in container.env.items()}
    if daemon.spec is not None:
        values["host paths"] = ", ".join(sorted(daemon.spec.host_paths))
    return values
