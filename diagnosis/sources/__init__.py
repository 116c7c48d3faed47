"""Sources of a snapshot: the cluster, saved files and bundles. Only this part reads the outside world."""
