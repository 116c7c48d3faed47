"""Text from outside: printable, bounded, and typed where it means a time or JSON."""
