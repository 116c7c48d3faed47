"""The agent's process: program, wiring, schedule and settings."""
