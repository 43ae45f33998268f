"""How are fields of an object reached, without asking at every step whether they are there?"""

from collections.abc import Iterator, Mapping


def mapping(value: object, *path: str) -> Mapping[str, object]:
    """The mapping at this path; an empty one if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def texts(value: object, *path: str) -> list[str]:
    """The texts of the list at this path."""
    inner = mapping(value, *path[:-1]).get(path[-1])
    return [item for item in inner if isinstance(item, str)] if isinstance(inner, list) else []


def mappings(value: object, *path: str) -> list[Mapping[str, object]]:
    """The mappings of the list at this path."""
    inner = mapping(value, *path[:-1]).get(path[-1])
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []


def pod_specs(value: object) -> Iterator[Mapping[str, object]]:
    """What every pod of an object is made from, wherever in it that stands."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
            return
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)
