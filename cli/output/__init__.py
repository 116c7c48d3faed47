"""Output of the commands: tables, lines, documents for programs, the page of a fleet, progress."""
