"""Id types: one NewType per idea, so that a step is never passed as a version."""

from typing import NewType

Rank = NewType("Rank", int)  # a worker's place in the ordered membership, from 0
Step = NewType("Step", int)  # the index of a worker's gradient, from 0
Clock = NewType("Clock", int)  # how many steps a worker has finished
Version = NewType("Version", int)  # how many updates the parameters have received
