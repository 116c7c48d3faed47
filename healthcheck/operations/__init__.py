"""Operations that a person runs on a node."""
