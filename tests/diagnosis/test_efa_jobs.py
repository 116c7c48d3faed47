"""Jobs on nodes with EFA that talk over TCP, and the same jobs after their remedies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosis.component_states import daemon, gpu_node, operand
from tests.diagnosis.states import (
    Object,
    condition,
    consequences,
    container,
    event,
    judged,
    node,
    obj,
    pod,
    results,
    terminated,
    waiting,
)

EFA = "vpc.amazonaws.com/efa"
PLUGIN = "aws-efa-k8s-device-plugin"
TYPE = "node.kubernetes.io/instance-type"
B200, P5, G5 = "ml.p6-b200.48xlarge", "p5.48xlarge", "g5.48xlarge"
AUTO = "eks.amazonaws.com/compute-type"
JOB = obj("Job", "train", "team", spec={"parallelism": 2}, status={"active": 2})
SYSTEM = pod("coredns", 0, on="a", namespace="kube-system")
Rows = list[tuple[str, list[Object], list[tuple[str, str]]]]


def ec2(name: str, kind: str = P5, efa: int = 32, **changes: Any) -> Object:
    offered = {"capacity": {EFA: str(efa)}, "allocatable": {EFA: str(efa)}} if efa else {}
    return gpu_node(name, labels={TYPE: kind, **changes.pop("labels", {})}, **offered, **changes)


def plugin(*nodes: str, image: str = "eks/aws-efa-k8s-device-plugin:v0.5.13", **spec: Any) -> list[Object]:
    kept: Any = {"namespace": "kube-system", "labels": {"name": PLUGIN}, "image": image}
    pods = [operand(PLUGIN, on, owner=("DaemonSet", PLUGIN), **kept) for on in nodes]
    return [daemon(PLUGIN, wanted=len(nodes), selector={}, spec=spec, **kept), *pods, SYSTEM]


def listing(key: str, operator: str, *values: str) -> Object:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def rank(name: str, on: str, efa: int = 0, gpus: int = 8, **changes: Any) -> Object:
    main = container("main", gpus, resources={EFA: str(efa)} if efa else {}, **changes.pop("main", {}))
    return pod(f"train-{name}", on=on, owner=changes.pop("owner", ("Job", "train")), containers=[main], **changes)


def ranks(efa: int = 0, **changes: Any) -> list[Object]:
    return [rank("0", "a", efa, **changes), rank("1", "b", efa, **changes)]


def claim(name: str, *device_classes: str) -> Object:
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": text}} for at, text in enumerate(device_classes)]
    return obj("ResourceClaimTemplate", name, "team", spec={"spec": {"devices": {"requests": requests}}})


def dranet(*nodes: str) -> list[Object]:
    """EFA devices of a DRA driver, as `kubectl get resourceslices -o json` prints them."""
    attributes = {"dra.net/pciDevice": {"string": "Elastic Fabric Adapter (EFA)"}}
    devices = [{"name": "pci-0000-00-1e-0", "attributes": attributes}]
    pool = {"generation": 1, "resourceSliceCount": 1}
    slices = [
        obj(
            "ResourceSlice",
            f"{on}-net",
            spec={"driver": "dra.net", "nodeName": on, "pool": {"name": on, **pool}, "devices": devices},
        )
        for on in nodes
    ]
    expression = (
        'device.driver == "dra.net" && device.attributes["dra.net"].pciDevice == "Elastic Fabric Adapter (EFA)"'
    )
    return [
        *slices,
        obj("DeviceClass", "efa.networking.k8s.aws", spec={"selectors": [{"cel": {"expression": expression}}]}),
    ]


def mounts(path: str, **main: Any) -> list[Object]:
    volume = {"volumes": [{"name": "ib", "hostPath": {"path": path}}]}
    return ranks(8, spec=volume, main={"volumeMounts": [{"name": "ib", "mountPath": path}], **main})


EFA_CLASS = "efa.networking.k8s.aws"


def by_claims(*device_classes: str) -> list[Object]:
    """Two ranks with all GPUs of their nodes by claims of a template, as the claim controller creates them."""
    made: list[Object] = [claim("all", *device_classes), obj("DeviceClass", "gpu.nvidia.com", spec={})]
    for at, on in enumerate("ab"):
        given = [{"driver": "gpu.nvidia.com", "pool": on, "device": f"gpu-{gpu}"} for gpu in range(8)]
        template = claim("all", *device_classes)["spec"]["spec"]
        status = {"allocation": {"devices": {"results": given}}}
        made.append(obj("ResourceClaim", f"train-{at}-all", "team", spec=template, status=status))
        spec = {"resourceClaims": [{"name": "all", "resourceClaimTemplateName": "all"}]}
        main = container("main")
        main["resources"] = {"claims": [{"name": "all"}]}
        names = {"resourceClaimStatuses": [{"name": "all", "resourceClaimName": f"train-{at}-all"}]}
        made.append(pod(f"train-{at}", 0, on=on, owner=("Job", "train"), containers=[main], spec=spec, status=names))
    return made


BY_CLAIM = {"resourceClaims": [{"name": "net", "resourceClaimTemplateName": "net"}]}
ON_P5 = [ec2("a"), ec2("b"), *plugin("a", "b")]
ON_B200 = [ec2("a", B200, 8), ec2("b", B200, 8), *plugin("a", "b")]
BARE_P5 = [ec2("a", efa=0), ec2("b", efa=0), SYSTEM]
TRAIN = ("job/team/train",)
DAEMON = f"daemonset/kube-system/{PLUGIN}"
ENV = [{"name": "MASTER_ADDR", "value": "x"}, {"name": "WORLD_SIZE", "value": "16"}]
HPC = node("hpc", None, capacity={EFA: "2"}, allocatable={EFA: "2"}, labels={TYPE: "hpc7a.96xlarge"})
SHORT = "0/2 nodes are available: 2 Insufficient vpc.amazonaws.com/efa."
ASKS_BY_NAME = pod(
    "train-0",
    8,
    owner=("Job", "train"),
    containers=[container("main", 8, resources={EFA: "32"})],
    conditions=[condition("PodScheduled", "False", "Unschedulable", SHORT)],
)
SLOW = "attached 2/6 network devices to pod team/train-0 within the container runtime NRI request timeout"
STUCK = pod(
    "train-0",
    8,
    on="a",
    owner=("Job", "train"),
    phase="Pending",
    states=[waiting("ContainerCreating")],
)
STATES: Rows = [
    ("a job that requests none", [*ON_P5, JOB, *ranks()], [("EfaNotRequested", "job/team/train")]),
    (
        "a job of a training operator",
        [*ON_P5, *ranks(owner=("PyTorchJob", "train"))],
        [("EfaNotRequested", "pytorchjob/team/train")],
    ),
    (
        "a StatefulSet whose pods are ranks",
        [*ON_P5, *ranks(owner=("StatefulSet", "train"), main={"env": ENV})],
        [("EfaNotRequested", "statefulset/team/train")],
    ),
    (
        "a job on nodes where only claims give EFA",
        [*BARE_P5, *dranet("a", "b"), JOB, *ranks()],
        [("EfaNotRequested", "job/team/train")],
    ),
    ("a job on nodes without a plugin", [*BARE_P5, JOB, *ranks()], [("EfaNotRequested", "job/team/train")]),
    (
        "a job on the host network alone",
        [*ON_P5, JOB, *ranks(spec={"hostNetwork": True})],
        [("EfaNotRequested", "job/team/train")],
    ),
    ("EFA by name", [*ON_P5, JOB, *ranks(32)], []),
    (
        "EFA by a claim",
        [*BARE_P5, *dranet("a", "b"), JOB, claim("net", "efa.networking.k8s.aws"), *ranks(spec=BY_CLAIM)],
        [],
    ),
    (
        "all devices of the host",
        [*ON_P5, JOB, *ranks(spec={"hostNetwork": True}, main={"securityContext": {"privileged": True}})],
        [],
    ),
    (
        "GPUs by claims, and no EFA",
        [*BARE_P5, *dranet("a", "b"), JOB, *by_claims("gpu.nvidia.com")],
        [("EfaNotRequested", "job/team/train")],
    ),
    (
        "GPUs and an IMEX channel by claims, and no EFA",
        [*BARE_P5, *dranet("a", "b"), JOB, *by_claims("gpu.nvidia.com", "compute-domain-default-channel.nvidia.com")],
        [("EfaNotRequested", "job/team/train")],
    ),
    ("GPUs and EFA by one claim", [*BARE_P5, *dranet("a", "b"), JOB, *by_claims("gpu.nvidia.com", EFA_CLASS)], []),
    ("one node", [ec2("a"), *plugin("a"), JOB, rank("0", "a")], []),
    ("two halves of one node", [ec2("a"), *plugin("a"), JOB, rank("0", "a", gpus=4), rank("1", "a", gpus=4)], []),
    ("some of the GPUs of two nodes", [*ON_P5, JOB, *ranks(gpus=1)], []),
    ("replicas that serve", [*ON_P5, *ranks(owner=("StatefulSet", "serve"))], []),
    (
        "replicas of a LeaderWorkerSet of one node each",
        [
            *ON_P5,
            *(
                rank(
                    str(at),
                    on,
                    owner=("LeaderWorkerSet", "serve"),
                    labels={"leaderworkerset.sigs.k8s.io/group-index": str(at)},
                )
                for at, on in enumerate("ab")
            ),
        ],
        [],
    ),
    ("a type without EFA", [ec2("a", "g5.xlarge", 0), ec2("b", "g5.xlarge", 0), JOB, *ranks()], []),
    ("a small type without a plugin", [ec2("a", G5, 0), ec2("b", G5, 0), SYSTEM, JOB, *ranks()], []),
    (
        "RoCE alone",
        [ec2("a", "p6e-gb300r.36xlarge", 0), ec2("b", "p6e-gb300r.36xlarge", 0), JOB, *ranks()],
        [],
    ),
    (
        "another cloud",
        [ec2("a", "Standard_ND96isr_H100_v5", 0), ec2("b", "Standard_ND96isr_H100_v5", 0), JOB, *ranks()],
        [],
    ),
    ("the host's devices", [*ON_B200, JOB, *mounts("/dev/infiniband")], [("HostInfinibandHidesEfa", "job/team/train")]),
    ("all of the host's /dev", [*ON_B200, JOB, *mounts("/dev/")], [("HostInfinibandHidesEfa", "job/team/train")]),
    (
        "the host's devices beside a claim",
        [
            *(ec2("a", B200, 0), ec2("b", B200, 0), SYSTEM, JOB, *dranet("a", "b")),
            *(claim("net", "efa.networking.k8s.aws"), *ranks(spec=BY_CLAIM | mounts("/dev/infiniband")[0]["spec"])),
        ],
        [("HostInfinibandHidesEfa", "job/team/train")],
    ),
    (
        "mlx5 by a label",
        [
            *(
                ec2(on, "p5en.48xlarge", 16, labels={"feature.node.kubernetes.io/pci-0200_15b3.present": "true"})
                for on in "ab"
            ),
            *(*plugin("a", "b"), JOB, *mounts("/dev/infiniband")),
        ],
        [("HostInfinibandHidesEfa", "job/team/train")],
    ),
    ("the host's devices on a type without mlx5", [*ON_P5, JOB, *mounts("/dev/infiniband")], []),
    ("the host's shared memory", [*ON_B200, JOB, *mounts("/dev/shm")], []),
    (
        "the host's devices, privileged",
        [*ON_B200, JOB, *mounts("/dev/infiniband", securityContext={"privileged": True})],
        [],
    ),
    (
        "a list without the type",
        [*BARE_P5, *plugin(affinity=listing(TYPE, "In", "p4d.24xlarge", "p5e.48xlarge"))],
        [("EfaPluginLeavesTypeOut", DAEMON)],
    ),
    (
        "a list without HyperPod's name of the type",
        [ec2("a", B200, 0), *plugin(affinity=listing(TYPE, "In", "p6-b200.48xlarge"))],
        [("EfaPluginLeavesTypeOut", DAEMON)],
    ),
    (
        "a plugin that excludes EKS Auto Mode",
        [ec2("a", efa=0, labels={AUTO: "auto"}), *plugin(affinity=listing(AUTO, "NotIn", "auto", "hybrid"))],
        [("EfaPluginLeavesTypeOut", DAEMON)],
    ),
    ("a list with the type", [ec2("a"), *plugin("a", affinity=listing(TYPE, "In", P5))], []),
    (
        "a list without a type that has no EFA",
        [ec2("a", "g5.xlarge", 0), *plugin(affinity=listing(TYPE, "In", P5))],
        [],
    ),
    ("a list, and claims instead", [*BARE_P5, *dranet("a", "b"), *plugin(affinity=listing(TYPE, "In", G5))], []),
    (
        "mlx5 counted as EFA",
        [ec2("a", B200, 10), *plugin("a", image="eks/aws-efa-k8s-device-plugin:v0.5.3")],
        [("EfaPluginCountsMlx5", DAEMON)],
    ),
    ("EFA on the same type by a fixed plugin", [ec2("a", B200, 8), *plugin("a")], []),
    ("EFA alone counted", [ec2("a", B200, 8), *plugin("a", image="eks/aws-efa-k8s-device-plugin:v0.5.3")], []),
    (
        "EFA by name where claims give it",
        [*BARE_P5, *dranet("a", "b"), JOB, ASKS_BY_NAME],
        [("EfaRequestedByName", "job/team/train")],
    ),
    (
        "EFA by name on nodes without GPUs alone",
        [*BARE_P5, *dranet("a", "b"), JOB, ASKS_BY_NAME, HPC],
        [("EfaRequestedByName", "job/team/train")],
    ),
    (
        "EFA by name where nothing gives it",
        [*BARE_P5, JOB, ASKS_BY_NAME],
        [("GpuResourceAbsent", f"resource/{EFA}")],
    ),
    (
        "network devices of another cloud",
        [
            *(gpu_node("a"), SYSTEM, JOB, ASKS_BY_NAME),
            obj(
                "ResourceSlice",
                "a-net",
                spec={"driver": "dra.net", "nodeName": "a", "devices": [{"name": "gpu0rdma0"}]},
            ),
        ],
        [("GpuResourceAbsent", f"resource/{EFA}")],
    ),
    (
        "devices that are not attached in time",
        [
            *(*BARE_P5, JOB, STUCK, event(STUCK, "NetworkDeviceAttachTimeout", SLOW, by="dra.net")),
            event(STUCK, "FailedCreatePodSandBox", f"rpc error: code = Unknown desc = NRI: {SLOW}"),
        ],
        [("DranetAttachFailed", "node/a")],
    ),
    (
        "devices that are never attached",
        [
            *(*BARE_P5, JOB, STUCK),
            event(
                STUCK, "NetworkDeviceAttachFailed", "gave up attaching network devices to pod team/train-0 after 5m0s"
            ),
        ],
        [("DranetAttachFailed", "node/a")],
    ),
    (
        "devices that are still being attached",
        [*BARE_P5, JOB, STUCK, event(STUCK, "NetworkDeviceAttachDeferred", f"{SLOW}; the attach continues", minutes=2)],
        [],
    ),
    (
        "devices that were attached late",
        [*ON_P5, JOB, *ranks(32), event(rank("0", "a"), "NetworkDeviceAttachDeferred", SLOW, minutes=50)],
        [],
    ),
]


@pytest.mark.parametrize(("state", "expected"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_state_has_its_cause_and_no_other(state: list[Object], expected: list[tuple[str, str]]) -> None:
    assert results(judged(*state)) == expected


FALLBACKS = [
    "NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation",
    "[0] NCCL WARN NET/OFI No eligible providers were found",
    "[0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
    "[0] NCCL WARN NET/OFI Couldn't find any optimal provider",
    "nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available",
    "fi_getinfo: -61 (No data available)",
    "NCCL INFO Initialized NET plugin Socket",
    "NCCL INFO Using network Socket",
    "NCCL INFO NET/OFI Selected Provider is tcp\nNCCL INFO Using network Libfabric",
]
USED = [
    "NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct\nNCCL INFO Using network Libfabric",
    "NCCL INFO NET/Plugin: No plugin found (libnccl-net-aws.so)\nNCCL INFO Using network AWS Libfabric",
    "step 1",
]
LAUNCHER = pod("train-launcher", 0, on="a", owner=("MPIJob", "train"))


def log(words: str, name: str = "train-0", container_name: str = "main") -> dict[tuple[str, str], str]:
    return {(f"pod/team/{name}", container_name): f"{words}\n" + "step\n" * 5}


@pytest.mark.parametrize("words", FALLBACKS)
def test_log_of_nccl_without_efa_is_reported(words: str) -> None:
    expected = [("NcclFallsBackToTcp", "job/team/train")]
    assert results(judged(*ON_P5, JOB, *ranks(32), logs=log(words))) == expected
    by_mpi = [*ON_P5, LAUNCHER, *ranks(32, owner=("MPIJob", "train"))]
    found = results(judged(*by_mpi, logs=log(words, "train-launcher")))
    assert found == [("NcclFallsBackToTcp", "mpijob/team/train")]


def test_failed_collective_follows_the_fallback_of_its_job() -> None:
    end = terminated(1, "Error", FALLBACKS[3])
    dead = waiting("CrashLoopBackOff", lastState={"terminated": end}, restartCount=4)

    (problem,) = judged(*ON_P5, JOB, rank("0", "a", 32, states=[dead]), rank("1", "b", 32)).problems

    assert problem.found.cause.name == "NcclFallsBackToTcp"
    assert consequences(problem) == [("CollectiveFails", "job/team/train")]


@pytest.mark.parametrize("words", USED)
def test_log_of_nccl_with_efa_is_ignored(words: str) -> None:
    assert results(judged(*ON_P5, JOB, *ranks(32), logs=log(words))) == []


def test_job_on_one_node_needs_no_efa() -> None:
    assert results(judged(ec2("a"), *plugin("a"), JOB, rank("0", "a", 32), logs=log(FALLBACKS[0]))) == []


def test_hidden_device_explains_the_fallback() -> None:
    (problem,) = judged(*ON_B200, JOB, *mounts("/dev/infiniband"), logs=log(FALLBACKS[1])).problems

    assert consequences(problem) == [("NcclFallsBackToTcp", "job/team/train")]


AGENT = "misc/socket.cc NCCL WARN socketPollConnect: connect to 169.254.170.23<41221> returned Connection refused"


def test_address_of_the_pod_identity_agent_is_reported() -> None:
    expected = [("NcclUsesPodIdentityAddress", "job/team/train")]
    hangs = [*ON_P5, JOB, *ranks(32)]
    assert results(judged(*hangs, logs=log(AGENT))) == expected
    assert results(judged(*hangs, logs=log(f"{AGENT}\nNCCL INFO comm 0x5 rank 0 nranks 16 - Init COMPLETE"))) == []
    assert results(judged(*hangs, logs=log(AGENT.replace("169.254.170.23", "10.0.7.23")))) == []

    dead = waiting("CrashLoopBackOff", lastState={"terminated": terminated(1, "Error", AGENT)}, restartCount=4)
    assert results(judged(*ON_P5, JOB, rank("0", "a", 32, states=[dead]), rank("1", "b", 32))) == expected
    gone = {"name": "main", "state": {"terminated": terminated(1, "Error", AGENT)}}
    failed = [rank(name, on, 32, phase="Failed", states=[gone]) for name, on in ("0a", "1b")]
    assert results(judged(*ON_P5, JOB, *failed)) == expected


def test_plugin_without_the_type_explains_a_job_without_efa() -> None:
    left_out = [*BARE_P5, *plugin(affinity=listing(TYPE, "In", "p4d.24xlarge"))]

    (problem,) = judged(*left_out, JOB, *ranks()).problems

    assert consequences(problem) == [("EfaNotRequested", "job/team/train")]
    assert f"Add {P5} to the Helm value" in problem.found.remedy[0]


def test_remedies_name_the_numbers_and_classes_of_the_cluster() -> None:
    (by_name,) = judged(*ON_P5, JOB, *ranks()).problems
    (by_claim,) = judged(*BARE_P5, *dranet("a", "b"), JOB, *ranks()).problems

    assert by_name.found.remedy[0].startswith("Set `vpc.amazonaws.com/efa: 32` in the limits")
    assert "efa.networking.k8s.aws" in by_claim.found.remedy[0]
    assert set(by_name.found.affected) == {"pod/team/train-0", "pod/team/train-1"}
