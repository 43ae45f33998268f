"""Wire and log formats: cluster.proto, torchft.proto, and the Python generated from them."""
