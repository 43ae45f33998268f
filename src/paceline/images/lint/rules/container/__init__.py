"""Rules about what the container gets when it starts: its command, variables, user, Python and code."""
