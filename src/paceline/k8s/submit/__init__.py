"""How is a job brought to a cluster, followed there, and tried again? The rules; nothing is sent."""
