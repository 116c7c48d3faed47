"""Render a diagnosis for people and for programs."""
