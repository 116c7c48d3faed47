"""The quarantine Job's program: find the fault of a suspect node, and recommend an action."""
