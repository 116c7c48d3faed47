"""State of a Node and its pods from the API, and the names of this project's fields on them."""
