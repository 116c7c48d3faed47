"""EFA devices: kernel counters, libfabric's list of devices, and a loopback test of each device."""
