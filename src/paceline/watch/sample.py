"""What is one number of one metric? A family's name, labels, and the value."""

from collections.abc import Mapping
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]  # sorted by name


class Sample(NamedTuple):
    name: str
    labels: Labels
    value: float


def labels_of(named: Mapping[str, object]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in named.items()))
