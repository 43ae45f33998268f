"""Is what is there what is wanted? A server adds fields of its own; those that are wanted must agree."""

from paceline.kube.parts import Object


def agrees(wanted: object, found: object) -> bool:
    match wanted:
        case dict():
            return isinstance(found, dict) and all(
                name in found and agrees(value, found[name]) for name, value in wanted.items()
            )
        case list():
            return (
                isinstance(found, list)
                and len(found) == len(wanted)
                and all(agrees(a, b) for a, b in zip(wanted, found, strict=True))
            )
        case _:
            return wanted == found


def difference(wanted: Object, found: Object) -> Object:
    """As a merge patch: no more than what differs. A list is one value."""
    changed: Object = {}
    for name, value in wanted.items():
        there = found.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            inner = difference(value, there)
            changed |= {name: inner} if inner else {}
        elif not agrees(value, there):
            changed[name] = value
    return changed
