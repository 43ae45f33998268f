"""Synchronization strategies: one file per mode, each on the same six-method port (port.py)."""
