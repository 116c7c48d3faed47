"""The knowledge that every program shares: looking, judging, deciding, applying."""

__version__ = "0.3.0"
