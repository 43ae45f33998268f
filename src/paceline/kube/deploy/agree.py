"""Is what is there what is wanted? A server adds fields of its own; those that are wanted must agree."""


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
