"""Everything that the agent writes to the cluster: Node, conditions, Events, heartbeat and budget slot."""
