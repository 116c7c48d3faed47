"""Speed and resource use of the agent, measured with a real API server; `python -m bench` runs everything."""
