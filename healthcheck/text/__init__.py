"""Parsing and sanitising of external text: printable, limited in length, times and JSON."""
