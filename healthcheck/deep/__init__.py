"""Deep diagnostics and quarantine runs: due times, claims on nodes, execution and records."""
