"""Access to this machine: child processes, files, sockets, signals, the terminal and the standard streams."""
