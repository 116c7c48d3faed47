"""The reset Job's program: reset GPUs of this node, and verify that they work."""
