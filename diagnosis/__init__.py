"""Why a GPU pod or node is stuck, and what mends it: collect → snapshot → causes → report."""
