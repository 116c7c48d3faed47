"""Client for all requests to the cluster: one part per kind of object, over one connection.

To read another kind, add a subclass of `Requests`, and list it here if the programs need it.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_healthcheck.healthcheck.cluster.connection import Connection, Connector, connect, refuse_to_read
from gpu_healthcheck.healthcheck.cluster.dra import DraObjects
from gpu_healthcheck.healthcheck.cluster.events import Events
from gpu_healthcheck.healthcheck.cluster.installation import ClusterSettings, Policies, Rights
from gpu_healthcheck.healthcheck.cluster.jobs import Jobs
from gpu_healthcheck.healthcheck.cluster.leases import Leases
from gpu_healthcheck.healthcheck.cluster.nodes import Nodes
from gpu_healthcheck.healthcheck.cluster.pods import Pods, Workloads


class Cluster:
    """Requests for all kinds of objects over one connection. Raises ClusterError. Safe to use from several threads."""

    def __init__(
        self,
        connector: Connector = connect,
        pass_over: Callable[[str], None] = refuse_to_read,
        request_seconds: float | None = None,
    ) -> None:
        self.connection = connection = Connection(connector, pass_over, request_seconds)
        self.nodes = Nodes(connection)
        self.leases = Leases(connection)
        self.pods = Pods(connection)
        self.jobs = Jobs(connection)
        self.dra = DraObjects(connection)
        self.events = Events(connection)
        self.settings = ClusterSettings(connection)
        self.rights = Rights(connection)
        self.policies = Policies(connection)
        self.workloads = Workloads(connection)
