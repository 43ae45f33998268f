"""What is asked of a Kubernetes cluster? Plain objects to be applied, and whether given ones are sound."""
