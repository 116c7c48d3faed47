"""A newcomer's hour: what README, install.md and runbook.md say, typed on a real kubelet, and what stays at its end."""
