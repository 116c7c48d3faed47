"""NVML's data, read by a child process that can be abandoned."""
