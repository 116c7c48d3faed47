"""Saved logs and saved check cycles, and their replay."""
