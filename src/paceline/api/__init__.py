"""Python API for programs and notebooks: the runs of the commands, with typed results."""
