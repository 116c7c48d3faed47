"""Check cycles: probe and judge the machine, and ask other systems for the facts that a cycle needs."""
