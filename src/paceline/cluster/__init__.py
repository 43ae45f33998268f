"""What talks to a Kubernetes cluster: a port over plain dicts, and one door to the client library."""
