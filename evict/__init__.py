"""Program that evicts the pods of faulty GPUs, so that their jobs continue elsewhere (docs/evict.md)."""
