"""Programs that this project tests and releases with, built from Go modules into a cache of this user's."""
