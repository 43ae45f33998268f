"""A coordinator node around its pure core: disk, network, clock, clients."""
