"""What a person does to a node."""
