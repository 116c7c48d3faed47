"""The console script: one file per command, no logic of its own."""
