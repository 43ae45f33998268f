"""Administration of a coordinator: start nodes, show their status, change and verify a group."""
