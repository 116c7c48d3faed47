"""Load test of the GPUs: arithmetic and copies, with checked results, through the driver's CUDA library alone."""
