"""Every command that the program can print is in one of these tables, or the test fails.

The commands are collected from the source: calls of `command(...)`, texts in backticks, and whole lines that begin with
a program. A part that is known only at run time is a `*`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpu_healthcheck.sim.control_plane import ControlPlane

ROOT = Path(__file__).parents[1]
OTHERS = ("agent", "cli", "evict", "healthcheck", "quarantine", "repair", "sweeper")
"""Packages beside `diagnosis`, whose changes of the cluster are run by tests/diagnosis/test_printed_changes.py."""
RUNTIMES = "tests/checks/test_printed_runtime_commands.py"

READS = (
    r"kubectl (get|describe|logs|wait|auth can-i|rollout status)\b.*",
    r"kubectl( --tail=100 \*)?",
    r"kubectl exec \S+ (-c \S+ )?-- (ls -l /dev|nvidia-smi( \*)?|py-spy dump --pid 1)",
    r"(kubectl )?gpu-healthcheck (check|diagnose|explain|replay|status|verify|sweep --dry-run)\b.*",
    r"systemctl status\b.*",
    r"journalctl -u \S+( -n 100)? --no-pager",
    r"(containerd config (dump|migrate)|crictl ps -a|crio config|dockerd --validate .*|talosctl (logs|service) \w+)",
    r"ls -lZ /dev/nvidia\*",
    r"docker buildx imagetools inspect \*",
    r"nvidia-smi (-L|-q|nvlink (-s|--status)|topo (-m|-p2p))\b.*",
    r"(dcgmi discovery -l|fi_info -p efa|ls /dev/nvidia\*|pgrep -a|ss -ltnp|journalctl -u).*",
    r"dmesg \| grep (-i efa|-i oom|-i xid|mlx5_core|NVRM)",
)
"""They change nothing. The second is of `logs` or `describe`, whose words a function hands over whole."""

RUN_BY = {
    r"chmod 0755.*": RUNTIMES,
    r"nvidia-ctk runtime configure": RUNTIMES,
    r"\* (--drop-in-config=\* )?&& \*": RUNTIMES,
    r"helm upgrade .*": RUNTIMES,
    r"(systemctl|snap) restart (?!nvidia).*": RUNTIMES,
    r"gpu-healthcheck release\b.*": "tests/agent/node/test_release.py",
    r"gpu-healthcheck quarantine \S+": "tests/cli/test_quarantine_story.py",
    r"gpu-healthcheck reset \S+": "tests/cli/test_reset.py",
    r"gpu-healthcheck reset \S+ --reboot": "tests/cli/test_reset_reboot.py",
    r"kubectl (drain \* \* --delete-emptydir-data|patch \* \* --type=merge).*": "tests/cli/test_evicted_jobs.py",
    r"kubectl (create -f \*|delete pods \*|patch --local .*)": "tests/diagnosis/test_safe_steps.py",
    r"(kubectl patch \* \* --type=json -p \*|\* && \* -f \* \| kubectl create -f -)": "tests/diagnosis/test_crio.py",
    r"kubectl exec \* -c \* -- bash -c \*": "tests/diagnosis/test_ranks.py",
    r"kubectl create clusterrolebinding \* .*": "tests/diagnosis/test_live.py",
    r"kubectl delete mutatingadmissionpolicybindings,\S+ -l \*": "tests/cluster/test_uninstall.py",
}
"""Run by the test named, on the real containerd, the API server or the simulated node."""

CHANGES = {
    "annotate node * *=* --overwrite": "annotate node other example.com/lock=y --overwrite",
    "cordon *": "cordon other",
    "cordon * *": "cordon other gone",
    "delete job *": "-n work delete job done",
    "delete node *": "delete node gone",
    "delete pod": "-n work delete pod named --wait=false",
    "delete pod *": "-n work delete pod stuck --wait=false",
    "drain * --ignore-daemonsets --delete-emptydir-data": "drain other --ignore-daemonsets --delete-emptydir-data",
    "label namespace gpu-healthcheck pod-security.kubernetes.io/enforce=privileged --overwrite": (
        "label namespace work pod-security.kubernetes.io/enforce=privileged --overwrite"
    ),
    "label node * *=* --overwrite": "label node other example.com/a=c --overwrite",
    'patch node NODE --type=merge -p \'{"metadata":{"managedFields":[{}]}}\'': (
        'patch node other --type=merge -p {"metadata":{"managedFields":[{}]}}'
    ),
    "uncordon": "uncordon other",
    "uncordon *": "uncordon other",
}
"""Of kubectl: run on a real API server, in this order, with objects that stand for what the command names."""

NOT_RUN = {
    r"oc debug \S+ -- chroot /host .*": "needs a node of OpenShift; it runs `journalctl` or `systemctl restart`",
    r"kubectl label node \* \*-": "as the label of a namespace, which test_printed_changes removes",
    r"kubectl rollout restart daemonset \*": "makes all its pods again, by its own rules; no kubelet ends them here",
    r"kubectl edit .*": "opens an editor: a person decides what is changed",
    r"dcgmi diag\b.*": "needs a GPU; the deep tests run its stand-in",
    r"crictl rmi --prune": "removes images of a node; the tests have no image store",
    r"modprobe (-a )?\S+( \S+)?": "loads a kernel module; tests/memory/test_advice.py has the node after it",
    r"nvidia-modprobe (-c0 -u|-u -c=0)": "makes device files of a GPU; the simulated node has them",
    r"mount --make-rshared /": "changes the mounts of a machine",
    r"mv /etc/containerd/conf.d/99-nvidia.toml /root/ && systemctl restart containerd": "moves a node's file away",
    r"nvidia-container-cli -k -d .*": "loads kernel modules",
    r"nvidia-smi --gpu-reset -i GPU": "needs a GPU; tests/cli/test_reset.py plays it",
    r"systemctl enable --now nvidia-fabricmanager": "needs NVSwitches",
    r"systemctl isolate multi-user.target": "ends the display of a machine",
    r"nvidia-smi ((-e|-pm) 1|-c (0|DEFAULT))": "a mode of the GPU; the simulated node plays it",
    r"nvidia-ctk cdi generate\b.*": "needs the driver's libraries of a GPU node",
    r"nvidia-ctk system create-dev-char-symlinks --create-all": "needs the device files of a GPU node",
    r"nvidia-ctk config --config=\S+ --set nvidia-container-runtime.mode=auto --in-place": "one key of one file",
    r"nvidia-ctk config --in-place --set nvidia-container-runtime.mode=(auto|cdi)": "one key of one file",
    r"nvidia-ctk runtime configure --runtime=(crio|docker)\b.*": "no CRI-O and no Docker is built for the tests",
    r"systemctl restart nvidia-(cdi-refresh|persistenced|dcgm nvidia-dcgm-exporter)": "a service of a GPU node",
    r"systemctl (enable --now|disable --now|mask) nvidia-imex": "the host's IMEX service: needs multi-node NVLink",
    r"kubectl delete revisions.serving.knative.dev \*": "needs Knative; test_unscheduled has the command",
    r"helm uninstall \*": "the test has no release; test_device_plugins has the command",
    r"microk8s enable nvidia": "installs an add-on from the network",
    r"apiclient set": "of Bottlerocket",
    r"talosctl service kubelet restart": "of Talos",
    r"gcloud container node-pools update .*": "creates the nodes of a pool anew: a person decides",
    r"kubectl apply -f \S+/daemonset-preloaded.yaml": "a manifest of Google's, from the network",
    r"aws \S+ .*": "asks a cloud to reboot or replace a machine",
    r"rm -rf /var/lib/gpu-healthcheck /var/log/gpu-healthcheck": "on the node's own disk; after `uninstall` alone",
    r"kubectl delete (daemonsets|roles),\S+ --all-namespaces -l \*": "all that is ours; after `uninstall` alone",
}
"""Each with the reason: hardware, another distribution, or a person's decision."""

PROGRAMS = (
    *("apiclient", "apt", "apt-get", "aws", "az", "chmod", "chown", "containerd", "cp", "crictl", "ctr", "curl"),
    *("dcgmi", "dmesg", "dnf", "docker", "eksctl", "fi_info", "gcloud", "gpu-healthcheck", "helm", "ibstat", "ip"),
    *("journalctl", "k3s", "kill", "kubectl", "ln", "ls", "lsmod", "lspci", "microk8s", "mkdir", "modprobe", "mount"),
    *("mv", "nv-hostengine", "nvidia-container-cli", "nvidia-ctk", "nvidia-modprobe", "nvidia-smi", "pgrep", "pkill"),
    *("reboot", "rm", "rmmod", "sed", "service", "shutdown", "snap", "ss", "sudo", "sysctl", "systemctl", "tee"),
    *("udevadm", "umount", "yum"),
)
_BACKTICKS = re.compile(r"`([^`]+)`")
_LINE = re.compile(r"(?:aws|gcloud|helm|kubectl|reboot|rm|snap|systemctl) (?!gpu-healthcheck)\S")
_OF_A_NAMESPACE = re.compile(r" -n \S+")


def text(node: ast.AST) -> str | None:
    """Return the text of an expression with a `*` for each part that is known only at run time."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text(one) or "*" for one in values)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            parts = text(left), text(right)
            return None if parts == (None, None) else "".join(part or "*" for part in parts)
    return None


def kind_of(about: str) -> str:
    """Return the kind of an object's metadata, such as `rooms[0].node.meta`, if the expression names it."""
    return next((name for name in reversed(re.findall(r"(?:node|pod)(?=s?\b)", about))), "*")


def is_command(words: str) -> bool:
    """Whether a text in backticks is one: the first word is a program's, or known only at run time."""
    first, *more = words.replace("[^", "").split() or [""]
    return bool(more) and (first in PROGRAMS or (first == "*" and "&&" in words))


def commands_in(node: ast.AST) -> Iterator[str]:
    """Yield the commands below a node of a module; docstrings hold none."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
        if "in_namespace(meta." in ast.unparse(node):
            return  # of `kubectl` and `logs`, whose calls are collected
        args = _without_namespace(node.args)
        given = ["*" if isinstance(arg, ast.Starred) else text(arg) or "*" for arg in args]
        # Words in front that a caller shares are kubectl's, with a namespace or without.
        shared = next((index for index in (0, 1) if isinstance(args[index], ast.Starred)), None)
        yield " ".join(given if shared is None else ["kubectl", *given[shared + 1 :]])
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "kubectl":
        verb, about, *options = node.args
        given = ["*" if isinstance(option, ast.Starred) else text(option) or "*" for option in options]
        yield " ".join(["kubectl", text(verb) or "*", kind_of(ast.unparse(about)), "*", *given])
        return
    if isinstance(node, ast.Tuple) and _LINE.match(
        words := " ".join(text(elt) or "*" for elt in _without_namespace(node.elts))
    ):
        yield words  # for `command(*words)`
    found = text(node)
    if found is not None:
        yield from (entry for entry in _BACKTICKS.findall(found) if entry.strip() and is_command(entry))
        if _LINE.match(found) and "`" not in found:
            yield found
    for child in ast.iter_child_nodes(node):
        if found is None or not isinstance(child, ast.Constant | ast.BinOp | ast.JoinedStr):
            yield from commands_in(child)


def _without_namespace(words: Sequence[ast.expr]) -> list[ast.expr]:
    return [word for word in words if "in_namespace(" not in ast.unparse(word)]


def printed(*packages: str) -> dict[str, str]:
    """Every command of the packages, without its namespace, with a file that prints it."""
    found: dict[str, str] = {}
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            for text in commands_in(ast.parse(file.read_text())):
                found[_OF_A_NAMESPACE.sub("", text, count=1)] = str(file.relative_to(ROOT))
        for file in sorted((ROOT / package).rglob("*.csv")):
            quoted = _BACKTICKS.findall(file.read_text())
            found |= {entry: str(file.relative_to(ROOT)) for entry in quoted if entry.strip() and is_command(entry)}
    return found


def has_own_test(words: str) -> bool:
    """Whether the command only reads, is run by a test that is named, or has a reason why it is not."""
    return any(re.fullmatch(read, words) for read in (*READS, *RUN_BY, *NOT_RUN))


def is_known(words: str) -> bool:
    """Whether the command has a place in these tables. Those of diagnose may have it in `test_printed_changes`."""
    return words.removeprefix("kubectl ") in CHANGES or has_own_test(words)


def test_every_printed_command_only_reads_is_run_or_has_a_reason_why_it_is_not() -> None:
    found = printed(*OTHERS)
    assert len(found) > 60
    assert {words: file for words, file in found.items() if not is_known(words)} == {}


def test_a_command_that_is_new_is_missed_by_the_tables() -> None:
    new = (
        'f"Do: `kubectl drain {node}`"',
        'command("rm", "-rf", path)',
        'command(*words, "scale", name)',
        '"reboot now"',
    )
    for source in new:
        (words,) = commands_in(ast.parse(f"x = {source}"))
        assert not is_known(words), words


def test_words_that_a_call_has_whole_are_a_command() -> None:
    (words, _) = commands_in(ast.parse('words = ("rm", "-rf", path)\nx = command(*words)'))
    assert words == "rm -rf *"
    assert not is_known(words)


def test_texts_that_are_no_commands_are_not_taken_for_one() -> None:
    for source in ('"`disabled_plugins` names it"', '"""`kubectl drain` of a docstring."""', '"`exec format error`"'):
        assert list(commands_in(ast.parse(source if source.startswith('"""') else f"x = {source}"))) == []


def test_every_row_has_a_command_and_every_test_named_is_there() -> None:
    assert {f"kubectl {words}" for words in CHANGES} <= printed(*OTHERS).keys()
    found = printed("diagnosis", *OTHERS)
    for pattern in (*READS, *RUN_BY, *NOT_RUN):
        assert any(re.fullmatch(pattern, text) for text in found), pattern
    assert all((ROOT / text).is_file() for text in RUN_BY.values())


OURS = re.compile(r"gpu-healthcheck|component=probe|managed-by=kubectl-debug --field-selector spec.nodeName=")
SELECTS = re.compile(
    r"kubectl[^`#\n]* (?:annotate|cordon|delete|drain|label|patch) [^`#\n]*(?:-l |-selector|--all\b)[^`#\n]*"
)


def test_commands_of_the_documentation_select_only_our_own_objects() -> None:
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    selecting = [command for page in pages for command in SELECTS.findall(page.read_text())]

    assert len(selecting) > 4
    assert [command for command in selecting if not OURS.search(command)] == []
    for foreign in ("kubectl delete pods --field-selector=status.phase=Failed", "kubectl drain -l pool=x"):
        assert SELECTS.findall(f"$ {foreign}")
        assert not OURS.search(foreign)


LABEL, TAINT = "gpu-healthcheck.aws-samples.io/status", "gpu-healthcheck.aws-samples.io/unhealthy"


def pod(name: str) -> dict[str, object]:
    spec = {"containers": [{"name": "x", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "work"}, "spec": spec}


def daemon_set(name: str) -> dict[str, object]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": "work"}, "spec": spec}


def a_cluster() -> list[dict[str, object]]:
    """A node with our taint, the target of the commands, a missing node, and work on the others."""
    ours = {"taints": [{"key": TAINT, "value": "true", "effect": "NoSchedule"}]}
    marked = {"name": "other", "annotations": {"example.com/lock": "x"}}
    job = {"template": {"spec": {"containers": [{"name": "x", "image": "x"}], "restartPolicy": "Never"}}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "work", "labels": {"example.com/ignore": "x"}}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "work"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "faulty", "labels": {LABEL: "fail"}}, "spec": ours},
        {"apiVersion": "v1", "kind": "Node", "metadata": marked},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone"}},
        *(pod(name) for name in ("kept", "named", "stuck")),
        daemon_set("toolkit"),
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "done", "namespace": "work"}, "spec": job},
    ]


@pytest.mark.cluster
def test_no_command_of_kubectl_changes_more_than_it_names(control_plane: ControlPlane) -> None:
    plane = control_plane
    for entry in a_cluster():
        plane.kubectl("apply", "-f", "-", input=json.dumps(entry))
    before = plane.kubectl("get", "node", "faulty", "-o", "jsonpath={.metadata.labels}{.spec}")

    for words in CHANGES.values():
        plane.kubectl(*words.split())
        assert plane.kubectl("get", "node", "faulty", "-o", "jsonpath={.metadata.labels}{.spec}") == before, words
        assert plane.kubectl("-n", "work", "get", "pod", "kept", "-o", "jsonpath={.metadata.deletionTimestamp}") == ""

    left = json.loads(plane.kubectl("get", "node", "other", "-o", "json"))
    assert not left["spec"].get("unschedulable")
    assert left["metadata"]["labels"]["example.com/a"] == "c"
