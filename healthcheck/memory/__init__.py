"""Remembered findings, with their sources and exits."""
