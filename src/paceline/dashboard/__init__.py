"""Dashboard: an HTTP server in a process of its own, and the page it serves."""
