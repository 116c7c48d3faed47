"""What a release is made of, each step once: the workflow runs them, and `make release-dry-run` runs them here."""
