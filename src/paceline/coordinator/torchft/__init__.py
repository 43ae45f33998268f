"""torchft on the coordinator: a lighthouse proxy on loopback for torchft's managers."""
