"""Memory of findings across check cycles and restarts, with their sources and exits."""
