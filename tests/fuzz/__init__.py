"""Hypothesis for as long as you like, over what reads untrusted bytes and what remembers; `make fuzz`, no test."""
