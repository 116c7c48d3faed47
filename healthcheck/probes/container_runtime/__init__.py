"""The container runtime that the kubelet uses: its processes, its files and its own status."""
