"""What of a wish is not there yet? As a merge patch: no more than what differs. A list is one value."""

from paceline.kube.parts import Object
from paceline.kube.submission.same import is_part_of


def difference(wanted: Object, found: Object) -> Object:
    """Empty: all of it is there."""
    changed: Object = {}
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            inner = difference(value, there)
            changed |= {name: inner} if inner else {}
        elif not is_part_of(value, there):
            changed[name] = value
    return changed
