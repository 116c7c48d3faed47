"""Client for all requests to the cluster: one class and module per kind, over one `connection`.

To read another kind, add a class over `Connection`, and list it here if the programs need it.
"""

from __future__ import annotations

from healthcheck.cluster.cluster_settings import ClusterSettings
from healthcheck.cluster.dra_objects import DraObjects
from healthcheck.cluster.events import Events
from healthcheck.cluster.jobs import Jobs
from healthcheck.cluster.leases import Leases
from healthcheck.cluster.nodes import Nodes
from healthcheck.cluster.pods import Pods
from healthcheck.cluster.policies import Policies
from healthcheck.cluster.rights import Rights


class Cluster(Nodes, Leases, Pods, Jobs, DraObjects, Events, ClusterSettings, Rights, Policies):
    """One connection for all kinds. Raises ClusterError, and is safe to use from several threads."""
