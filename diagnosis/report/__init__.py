"""A diagnosis as a person or a program reads it."""
