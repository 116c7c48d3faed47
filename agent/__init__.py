"""The DaemonSet's program: look, judge, decide and tell, on a schedule and at every kernel line."""
