"""Find why a GPU pod or node is stuck, and how to fix it: collect → snapshot → causes → report."""
