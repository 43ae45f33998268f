"""Clusters of real coordinator processes, on real sockets and real disks, and ways to break them."""
