"""What of our own services runs on a cluster, and as which objects? Pure."""
