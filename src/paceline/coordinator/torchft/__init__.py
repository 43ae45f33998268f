"""What stands between torchft's managers and the coordinators: a proxy on loopback."""
