"""Facts derived from a snapshot: placement, GPUs, components, symptoms. Pure."""
