"""Decisions: from the active findings to the state that the Node shows."""
