"""The container runtime that the kubelet uses: its processes, its files, and what it says itself."""
