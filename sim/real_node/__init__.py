"""A real Kubernetes node in namespaces of its own, to try what a user would deploy: image, manifests and agent."""

from sim.real_node.node import RealNode
from sim.real_node.running import RunningNode
from sim.real_node.waiting import RealNodeError

__all__ = ["RealNode", "RealNodeError", "RunningNode"]
