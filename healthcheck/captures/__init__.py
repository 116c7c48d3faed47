"""Saved logs and looks, and their replay."""
