"""Hypothesis without a time limit, over parsers of untrusted bytes and the memory; `make fuzz`, no test."""
