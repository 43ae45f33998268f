"""Paceline: train one task with many workers, and learn which way of agreeing was worth it.

Importing this package never imports torch, so that `paceline --help` answers at once.
"""

__version__ = "0.1.0"
