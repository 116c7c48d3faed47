"""The commands for krew: one archive per platform that needs no installation, and the manifest of the archives."""
