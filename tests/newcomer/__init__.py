"""A first hour: commands of README, install.md and runbook.md on a real kubelet, and the traces at its end."""
