"""Fix a node whose container runtime lacks NVIDIA's handler: toolkit values, or commands for the node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from diagnosis.facts.commands import command, explain, kubectl
from diagnosis.facts.symptoms import shortened
from diagnosis.facts.toolkit_advice import RuntimeFiles, by_hand, toolkits, where_it_should_write
from diagnosis.snapshot import Snapshot
from diagnosis.snapshot.agent_record import RecordFinding
from diagnosis.snapshot.nodes import Node
from diagnosis.snapshot.workloads import Workload

_EITHER = re.compile(
    r"with the GPU operator (`[^`]{1,900}`); with the toolkit on the host (`[^`]{1,900}`)(.*)", re.DOTALL
)
"""Form of the agent's advice if it is unknown whether the cluster uses the GPU operator."""
_WORD = r"(?:[A-Za-z0-9_./=:@,*+%\\{}\[\]-]{1,500}|'[A-Za-z0-9_./=:@,*+%\\{}\[\] -]{1,800}')"
_RESTART = rf"(?:systemctl|snap) restart {_WORD}"
_OURS = re.compile(
    rf"""(?:nvidia-ctk(?: {_WORD}){{1,12}}(?: && {_RESTART})?|{_RESTART}|chmod 0755 {_WORD}|microk8s enable nvidia"""
    rf"""|helm upgrade "\$\(helm list -qn [a-z0-9-]{{1,63}}\)" nvidia/gpu-operator(?: {_WORD}){{1,12}}"""
    r"""|kubectl -n gpu-operator rollout restart ds/nvidia-container-toolkit-daemonset"""
    r"""|imports|apiclient set|aws-k8s-VERSION-nvidia)\Z""",
    re.ASCII,
)
"""Commands that `checks/runtime_fixes` writes.

Everything else is dropped: root on the node can write the annotation, and an administrator would paste the command.
"""


def by_agent(finding: RecordFinding | None) -> Iterator[str]:
    """Yield our agent's observation as evidence, without its advice."""
    if finding is not None:
        seen, _ = _apart(finding.detail)
        yield f"agent on the node: {finding.reason}: {shortened(seen, 600)}"


def fix_steps(
    snapshot: Snapshot, node: Node | None, finding: RecordFinding | None, others: Iterable[Node] = ()
) -> Iterator[str]:
    """Yield the steps that restore NVIDIA's handler on the node; on several alike, the first known one of `others`.

    If the operator's toolkit is installed, the steps change the operator's values; it overwrites manual changes.
    """
    known = (where_it_should_write(one, finding if one is node else None) for one in (node, *others))
    should = next((target for target in known if target is not None), None)
    operators = next(iter(toolkits(snapshot)), None)
    if finding is not None:
        yield from _by_the_agents_word(snapshot, finding, operators)
    if operators is not None:
        yield from _by_helm(snapshot, operators, should)
    elif finding is None:
        yield by_hand(node)
    if node is not None and node.handlers is not None:
        path = "jsonpath={.status.runtimeHandlers[*].name}"
        yield f"Then check that the node reports it: {kubectl('get', node.meta, '-o', path)}"


def _by_the_agents_word(snapshot: Snapshot, finding: RecordFinding, operators: Workload | None) -> Iterator[str]:
    seen, words = _apart(finding.detail)
    if not all(_OURS.match(word) for word in words.split("`")[1::2]):
        yield f"Check the fault on the node itself: {explain(finding.reason)}"
        return
    either = _EITHER.match(words)
    if either is None:
        yield f"Follow the agent's advice for the node: {shortened(words or seen, 900)}"
        return
    helm, host, more = either.groups()
    if operators is None:
        yield f"If NVIDIA's container toolkit is installed on the node, run there: {host}{shortened(more)}"
        if not snapshot.sees("DaemonSet"):
            yield f"If the GPU operator installs the toolkit: {helm}"


def _by_helm(snapshot: Snapshot, toolkit: Workload, should: RuntimeFiles | None) -> Iterator[str]:
    policy = next((cluster_policy.toolkit_env for cluster_policy in snapshot.cluster_policies), {})
    namespace = toolkit.meta.namespace
    if should is not None:
        yield f"Set the toolkit to the kubelet's runtime: {should.helm(namespace, policy)}"
        return
    logs = command("kubectl", "-n", namespace, "logs", f"daemonset/{toolkit.meta.name}", "--all-containers")
    unknown = RuntimeFiles("CONFIG", "SOCKET", "")
    yield f"Check in the toolkit's log whether it wrote the handler, and to which file: {logs}"
    yield (
        "If `pgrep -a containerd` on the node shows another file or socket for the kubelet's containerd "
        f"(--config, --address), replace CONFIG and SOCKET by them: {unknown.helm(namespace, policy)}"
    )


def _apart(detail: str) -> tuple[str, str]:
    """Split a finding's detail into observation and advice.

    The advice starts with the clause that contains the first command.
    """
    command_at = detail.find("`")
    if command_at < 0:
        return detail, ""
    mark = max(detail.rfind(": ", 0, command_at), detail.rfind("; ", 0, command_at))
    return (detail[:mark], detail[mark + 2 :]) if mark > 0 else (detail, "")
