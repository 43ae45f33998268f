"""Our own services on a cluster, and their objects."""
