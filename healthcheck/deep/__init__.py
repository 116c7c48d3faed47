"""A deep run: when it is due, who holds the node for it, the run itself and its record."""
