"""NVIDIA's tables as data files, each row with its source, loaded once into typed rows."""
