"""The DaemonSet's program: probe, judge, decide and report, on a schedule and at every kernel line."""
