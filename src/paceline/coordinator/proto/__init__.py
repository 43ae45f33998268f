"""What travels between nodes, workers and commands, and what the log holds: cluster.proto and its Python."""
