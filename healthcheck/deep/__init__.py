"""Deep diagnostics and quarantine: when one is due, the claim on the node, the run and its record."""
