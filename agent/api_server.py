"""What all parts talk to the API server through."""

from __future__ import annotations

from msgspec import Struct

from agent.outage import Outage
from agent.permissions import Permissions
from healthcheck.cluster.client import Cluster


class ApiServer(Struct, frozen=True):
    """`write` False: a dry run or a standby, which logs what it would write and writes nothing."""

    cluster: Cluster
    permissions: Permissions
    outage: Outage
    write: bool = True
