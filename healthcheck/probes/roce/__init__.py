"""InfiniBand and RoCE ports of mlx5 devices, and their loopback test."""
