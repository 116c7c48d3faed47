"""Steps of a release, each defined once: the workflow runs them, and `make release-dry-run` runs them locally."""
