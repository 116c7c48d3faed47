"""Tests of the load test of the GPUs, on the simulated driver's CUDA library."""
