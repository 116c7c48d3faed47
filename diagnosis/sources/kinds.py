"""Kinds that a diagnosis lists: the API path of each, and the results that are missing without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from gpu_healthcheck.diagnosis.snapshot.queues import POD_GROUP, WORKLOAD
from gpu_healthcheck.healthcheck.cluster.names import NAMESPACE


class ApiKind(Struct, frozen=True):
    """Kind in the API. `group` is its path, `api/v1` or `apis/apps/v1`; `resource` the plural, as in a role.

    `versions`: API versions that may be served, the newest first, if `group` has no version.
    `names`: only objects with these names are queried, in any namespace; () for all.
    """

    kind: str
    group: str
    resource: str
    namespaced: bool = True
    names: tuple[str, ...] = ()
    versions: tuple[str, ...] = ("",)

    def path(self, namespace: str = "") -> str:
        """Return the path of the listing, limited to one namespace if the kind is namespaced."""
        where = f"namespaces/{namespace}/" if namespace and self.namespaced else ""
        return f"/{self.group}/{where}{self.resource}"


_DRA = "apis/resource.k8s.io/{}"
_DRA_VERSIONS = ("v1", "v1beta2", "v1beta1")
"""API versions, newest first: 1.34 serves the first, 1.33 the second, 1.32 the third."""
_KUEUE = "apis/kueue.x-k8s.io/{}"
_KUEUE_VERSIONS = ("v1beta2", "v1beta1")
_NATIVE = "apis/scheduling.k8s.io/{}"
_VOLCANO = "apis/scheduling.volcano.sh/v1beta1"
POD = ApiKind("Pod", "api/v1", "pods")
KINDS = (
    ApiKind("Node", "api/v1", "nodes", namespaced=False),
    POD,
    ApiKind("Event", "api/v1", "events"),
    ApiKind("Namespace", "api/v1", "namespaces", namespaced=False),
    ApiKind("Deployment", "apis/apps/v1", "deployments"),
    ApiKind("ReplicaSet", "apis/apps/v1", "replicasets"),
    ApiKind("StatefulSet", "apis/apps/v1", "statefulsets"),
    ApiKind("DaemonSet", "apis/apps/v1", "daemonsets"),
    ApiKind("Job", "apis/batch/v1", "jobs"),
    ApiKind("JobSet", "apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    ApiKind("PyTorchJob", "apis/kubeflow.org/v1", "pytorchjobs"),
    ApiKind("MPIJob", "apis/kubeflow.org/v2beta1", "mpijobs"),
    ApiKind("LeaderWorkerSet", "apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    ApiKind("ResourceQuota", "api/v1", "resourcequotas"),
    ApiKind("LimitRange", "api/v1", "limitranges"),
    ApiKind("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets"),
    ApiKind("RuntimeClass", "apis/node.k8s.io/v1", "runtimeclasses", namespaced=False),
    ApiKind(
        "MutatingWebhookConfiguration",
        "apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        namespaced=False,
    ),
    ApiKind(
        "ValidatingWebhookConfiguration",
        "apis/admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        namespaced=False,
    ),
    ApiKind("EndpointSlice", "apis/discovery.k8s.io/v1", "endpointslices"),
    ApiKind("PersistentVolumeClaim", "api/v1", "persistentvolumeclaims"),
    ApiKind("PersistentVolume", "api/v1", "persistentvolumes", namespaced=False),
    ApiKind("Lease", "apis/coordination.k8s.io/v1", "leases"),
    ApiKind(
        "ConfigMap", "api/v1", "configmaps", names=("hami-scheduler", "hami-scheduler-device", "hami-device-plugin")
    ),
    ApiKind("ClusterPolicy", "apis/nvidia.com/v1", "clusterpolicies", namespaced=False),
    ApiKind("GPUCluster", "apis/nvidia.com/v1alpha1", "gpuclusters", namespaced=False),
    ApiKind("ResourceSlice", _DRA, "resourceslices", namespaced=False, versions=_DRA_VERSIONS),
    ApiKind("DeviceClass", _DRA, "deviceclasses", namespaced=False, versions=_DRA_VERSIONS),
    ApiKind("ResourceClaim", _DRA, "resourceclaims", versions=_DRA_VERSIONS),
    ApiKind("ResourceClaimTemplate", _DRA, "resourceclaimtemplates", versions=_DRA_VERSIONS),
    ApiKind("DeviceTaintRule", _DRA, "devicetaintrules", namespaced=False, versions=("v1", "v1beta2", "v1alpha3")),
    ApiKind("ComputeDomain", "apis/resource.nvidia.com/{}", "computedomains", versions=("v1beta1", "v1beta2")),
    ApiKind("Workload", _KUEUE, "workloads", versions=_KUEUE_VERSIONS),
    ApiKind("LocalQueue", _KUEUE, "localqueues", versions=_KUEUE_VERSIONS),
    ApiKind("ClusterQueue", _KUEUE, "clusterqueues", namespaced=False, versions=_KUEUE_VERSIONS),
    ApiKind("PodGroup", _VOLCANO, "podgroups"),
    ApiKind("Queue", _VOLCANO, "queues", namespaced=False),
    ApiKind(POD_GROUP, _NATIVE, "podgroups", versions=("v1beta1", "v1alpha3", "v1alpha2")),
    ApiKind(WORKLOAD, _NATIVE, "workloads", versions=("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1")),
)
SHARING = (
    *("time-slicing-config", "time-slicing-config-all", "time-slicing-config-fine"),
    *("nvidia-plugin-configs", "nvidia-device-plugin-config"),
)
"""ConfigMaps that are read in the namespaces of NVIDIA's device plugins, by the names in their documentation."""
OF_COMPONENTS = frozenset(("DaemonSet", "Deployment"))
"""Kinds of components, which have their own namespaces. If these are not listed, components are not visible."""
_OF_NODES = "kube-node-lease"


def everywhere(kind: ApiKind) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the queries for all objects of a kind; only for some names if it has `names`."""
    if kind.names:
        yield from (("", {"fieldSelector": f"metadata.name={name}"}) for name in kind.names)
    else:
        yield "", {}


def selectors_for(namespace: str, node: str) -> Callable[[ApiKind], Iterable[tuple[str, dict[str, str]]]]:
    """Return queries for a pod's namespace, cluster-wide objects, its node, and the pods there.

    These are the objects on which the pod depends. `node` is '' if the pod waits for a node, and may get any.
    """
    of_node: dict[str, list[tuple[str, dict[str, str]]]] = {
        "Node": [("", {"fieldSelector": f"metadata.name={node}"})],
        "Pod": [("", {"fieldSelector": f"spec.nodeName={node}"}), (namespace, {})],
        "Lease": [(place, {"fieldSelector": f"metadata.name={node}"}) for place in (_OF_NODES, NAMESPACE)],
        "PersistentVolume": [],  # a bound pod is on a node that can mount its volumes
    }

    def where(kind: ApiKind) -> Iterable[tuple[str, dict[str, str]]]:
        if node and kind.kind in of_node:
            return of_node[kind.kind]
        if kind.names or not kind.namespaced or kind.kind in OF_COMPONENTS:
            return everywhere(kind)
        return [(namespace, {})]

    return where
