"""The EFA devices: what the kernel counts of them, what libfabric sees, and a run over each."""
