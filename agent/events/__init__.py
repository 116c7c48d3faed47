"""Events of the driver: follow the kernel log and judge its records."""
