"""Former name of `paceline.core.ids`, kept for strategies that users have written."""

from paceline.core.ids import Clock, Rank, Step, Version

__all__ = ["Clock", "Rank", "Step", "Version"]
