"""Access of all parts to the API server."""

from __future__ import annotations

from msgspec import Struct

from agent.node.outage import Outage
from agent.node.permissions import Permissions
from healthcheck.cluster.client import Cluster


class ApiServer(Struct, frozen=True):
    """Access to the API server. With `write` False (a dry run or a standby), writes are logged and not sent."""

    cluster: Cluster
    permissions: Permissions
    outage: Outage
    write: bool = True
