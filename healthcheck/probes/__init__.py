"""One source of facts each. A probe has no opinion about what it reads."""
