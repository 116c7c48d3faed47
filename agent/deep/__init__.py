"""Deep diagnostics on this node: when level 2 is due, its claim, its run and its result."""
