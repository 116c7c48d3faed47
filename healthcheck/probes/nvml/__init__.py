"""What NVML says, asked by a child process that can be given up."""
