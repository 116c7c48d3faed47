"""Tests of the program evict."""
