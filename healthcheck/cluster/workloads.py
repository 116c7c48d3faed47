"""Controllers of pods whose objects state how many failures they survive."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from healthcheck.cluster.connection import Requests

_PATHS = {
    ("batch", "Job"): ("apis/batch/v1", "jobs"),
    ("jobset.x-k8s.io", "JobSet"): ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    ("kubeflow.org", "PyTorchJob"): ("apis/kubeflow.org/v1", "pytorchjobs"),
    ("kubeflow.org", "MPIJob"): ("apis/kubeflow.org/v2beta1", "mpijobs"),
}


class Workloads(Requests):
    """Reads Jobs, JobSets, PyTorchJobs and MPIJobs of any namespace as plain API objects."""

    def is_known(self, group: str, kind: str) -> bool:
        return (group, kind) in _PATHS

    def read(self, group: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return the object. Raises NotFound, Forbidden and other ClusterErrors; KeyError for another kind."""
        path, resource = _PATHS[group, kind]
        return self._json("get", f"/{path}/namespaces/{quote(namespace)}/{resource}/{quote(name)}", resource)
