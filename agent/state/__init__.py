"""State of the agent: memory, node-local files, and failures of the program."""
