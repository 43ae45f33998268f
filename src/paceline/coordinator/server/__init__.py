"""What keeps a coordinator node alive around its pure core: disk, network, clock, clients."""
