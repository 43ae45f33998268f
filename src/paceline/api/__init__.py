"""What a Python program or a notebook calls: the same runs as the command's, with typed results."""
