"""Operations that a user runs on a node."""
