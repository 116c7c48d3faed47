"""Programs for this project's tests and releases, built from Go modules into a cache of the user."""
