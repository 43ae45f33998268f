"""What is trained: the task port, the built-in tasks, and how a user's own is found."""
