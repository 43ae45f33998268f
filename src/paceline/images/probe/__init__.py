"""Probe of a built image: a script collects facts inside a container, and checks judge them."""
