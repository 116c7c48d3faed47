"""A release on this machine: a stand-in for the bases, a registry on loopback, a temporary key pair."""
