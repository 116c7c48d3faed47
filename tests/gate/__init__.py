"""Jobs with the gate on a real control plane with scheduler and Job controller."""
