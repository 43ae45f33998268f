"""Command line: parses flags, calls the feature packages and prints; one module per command group."""
