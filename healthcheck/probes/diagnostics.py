"""The running processes of DCGM's tests that are ours or the node's own: their number is what a kernel line names.

A name alone is none: whoever has a pod calls his processes as he likes. The control group says in which pod one is, and
the kubelet's own folder of logs which namespace that pod is of.
"""

from __future__ import annotations

import re
from pathlib import Path

from healthcheck.host import host_files
from healthcheck.host.opening import names_in
from healthcheck.probes.container_runtime import processes
from healthcheck.probes.container_runtime.origins import Origin

NAMES = frozenset({"nvvs", "dcgmi", "nv-hostengine", "nvbandwidth"})
"""DCGM's: who runs the tests, who starts it with and without a hostengine of its own, and a test that is a program.

Others that a test may start, such as NCCL's all_reduce_perf, have names that a person's own work has too.
"""
_LOGS = "/var/log/pods"
"""The kubelet makes a folder here for each pod: NAMESPACE_NAME_UID."""
_POD = re.compile(rb"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?=/|$)", re.MULTILINE)


def find(root: Path, namespace: str) -> frozenset[int]:
    """Those outside of containers, and those in pods of that namespace. Raises OSError where nobody can tell."""
    if not processes.are_the_hosts(root):
        return frozenset()  # other numbers than the kernel's
    called = processes.called(root, NAMES)
    pods = _pods_of(root, namespace) if any(origin is not Origin.HOST for _, origin, _ in called) else frozenset()
    return frozenset(pid for pid, origin, cgroup in called if origin is Origin.HOST or _pod(cgroup) in pods)


def _pod(cgroup: bytes) -> str:
    """The pod's UID by its outermost group: those within are named by whoever is in it. '' for none, or for several."""
    first = {found[1] for line in cgroup.splitlines() if (found := _POD.search(line))}
    return first.pop().decode().replace("_", "-") if len(first) == 1 else ""


def _pods_of(root: Path, namespace: str) -> frozenset[str]:
    """The UIDs that the kubelet knows in that namespace and in no other."""
    words = [name.split("_") for name in names_in(host_files.below(root, _LOGS))]
    known = [(word[0], word[2]) for word in words if len(word) == 3]
    others = {uid for space, uid in known if space != namespace}
    return frozenset(uid for space, uid in known if space == namespace) - others - {""}
