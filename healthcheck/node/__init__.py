"""A Node and its pods as the API shows them, and the names of what is ours on them."""
