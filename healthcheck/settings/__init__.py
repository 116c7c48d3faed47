"""Settings of a cluster and variables of a program: their declaration, reading and validation."""
