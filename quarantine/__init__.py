"""The quarantine Job's program: what is wrong with a suspect node, and what to do with it."""
