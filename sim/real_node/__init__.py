"""A real Kubernetes node in its own namespaces, to test the parts that a user deploys: image, manifests and agent."""

from gpu_healthcheck.sim.real_node.node import RealNode
from gpu_healthcheck.sim.real_node.running import RunningNode
from gpu_healthcheck.sim.real_node.waiting import RealNodeError

__all__ = ["RealNode", "RealNodeError", "RunningNode"]
