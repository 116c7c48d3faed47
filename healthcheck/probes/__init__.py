"""Probes, each of which reads one source of facts. A probe does not judge the values it reads."""
