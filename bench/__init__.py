"""How fast and how light the agent is, measured on a real API server; `python -m bench` runs everything."""
