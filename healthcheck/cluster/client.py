"""All that is asked of the cluster, by kind: each in the module of its name, over one `connection`.

A kind that we read next is one more class over `Connection`, here where our programs want it.
"""

from __future__ import annotations

from healthcheck.cluster.configuration import ClusterSettings
from healthcheck.cluster.devices import Devices
from healthcheck.cluster.events import Events
from healthcheck.cluster.jobs import Jobs
from healthcheck.cluster.leases import Leases
from healthcheck.cluster.nodes import Nodes
from healthcheck.cluster.pods import Pods
from healthcheck.cluster.policies import Policies
from healthcheck.cluster.rights import Rights


class Cluster(Nodes, Leases, Pods, Jobs, Devices, Events, ClusterSettings, Rights, Policies):
    """One connection for all of them. Raises ClusterError, and is safe to use from several threads."""
