"""The documentation, and the few lines of code that keep it true."""
