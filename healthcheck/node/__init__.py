"""A Node and its pods as the API shows them, and the names of this project's fields on them."""
