"""Readers of plain Kubernetes objects: fields, names, quantities, times, log lines."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal


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
    """Pod specs at any depth of an object."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
            return
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
ZONE = "topology.kubernetes.io/zone"
ELASTIC_NODES = "paceline.dev/elastic-nodes"  # annotation of a job: fewest and most hosts, as 2:8
COMMAND_RESTARTS = "paceline.dev/command-is-replaced"  # annotation: its operator makes a lost command again
DRAINED = 75  # EX_TEMPFAIL, exit code of an agent whose workers have left: the pod shall be made again
HYPERPOD_HEALTH = "sagemaker.amazonaws.com/node-health-status"


NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # DNS-1035: services are called like their job
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
VARIABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")
LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
IMAGE = re.compile(
    r"([a-z0-9][a-z0-9.\-]*(:[0-9]+)?/)?[a-z0-9]+([._\-]+[a-z0-9]+)*(/[a-z0-9]+([._\-]+[a-z0-9]+)*)*"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?"
)
RESOURCE = re.compile(
    r"cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMG]i"
    r"|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
MAX_LABEL_LENGTH = 63
MAX_RAY_NAME_LENGTH = 47  # of a RayJob: KubeRay appends to it, and refuses longer names
MAX_RAY_CLUSTER_LENGTH = 53

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_UNITS = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
_UNITS |= {"P": "1e15", "E": "1e18"}
_BYTES = re.compile(r"(^|\.)(memory|storage|ephemeral-storage)$|hugepages-")
_BINARY = {unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}


def read_quantity(text: object) -> Decimal | None:
    """`500m`, `2`, `4Gi` as a number; None if it is none, or less than nothing."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number = Decimal(match[1])
    unit = match[2] or ""
    if unit in _BINARY:
        return number * _BINARY[unit]
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return number * Decimal("1" + unit)
    return number * Decimal(_UNITS.get(unit, "1"))


def write_quantity(amount: Decimal, resource: str) -> str:
    """Format like kubectl: bytes as 512Mi or 1536Mi, parts of a CPU as 1500m, others as a plain number.

    Bytes that are no whole number of a unit are rounded to four digits.
    """
    if _BYTES.search(resource):
        fitting = [unit for unit in reversed(_BINARY) if amount >= _BINARY[unit]]
        whole = (unit for unit in fitting if amount % _BINARY[unit] == 0 and amount / _BINARY[unit] < 10_000)
        unit = next(whole, fitting[0] if fitting else "")
        return f"{_rounded(amount / _BINARY.get(unit, Decimal(1)))}{unit}"
    if resource.endswith("cpu") and amount != amount.to_integral_value():
        return f"{_rounded(amount * 1000)}m"
    return _rounded(amount)


def _rounded(number: Decimal) -> str:
    """Whole numbers exactly, others to four digits, never with an exponent."""
    if number == number.to_integral_value():
        return f"{number.to_integral_value():f}"
    return f"{Decimal(f'{number:.4g}').normalize():f}"


def is_extended(resource: str) -> bool:
    """A device such as nvidia.com/gpu: whole ones only, and requests equal limits."""
    return "/" in resource and not resource.startswith("kubernetes.io/")


# CSI and OSC sequences of a terminal, whole or cut off at the end; colours whose first character was cut off;
# and single control characters but the tab.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|\[\d{1,3}(?:;\d{1,3})*m"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)


def strip_ansi(text: str) -> str:
    """The text as a terminal shows it, without colours and other control sequences."""
    return _ESCAPES.sub("", text)


_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"
_WHOLE = re.compile(_STAMP)
_LINE = re.compile(rf"({_STAMP}) ?(.*)", re.DOTALL)


def read_time(value: object) -> float | None:
    """Unix seconds of `2026-11-15T10:00:03Z`; None when there is no time."""
    if not isinstance(value, str) or not _WHOLE.fullmatch(value):
        return None
    # Kubernetes writes nanoseconds; datetime reads at most microseconds.
    text = re.sub(r"(\.\d{6})\d+", r"\1", value.replace("Z", "+00:00"))
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # the 31st of February, from a damaged file
        return None


def write_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def split_line(line: str) -> tuple[float | None, str]:
    """The time that `kubectl logs --timestamps` put before a line, and the line."""
    match = _LINE.match(line)
    return (None, line) if match is None else (read_time(match[1]), match[2])


def newest_time(value: object) -> float | None:
    """The latest time anywhere in it, as an estimate of when a recording was made."""
    newest: float | None = None
    todo = [value]
    while todo:
        part = todo.pop()
        match part:
            case dict():
                todo += part.values()
            case list():
                todo += part
            case str():
                at_s = read_time(part)
                if at_s is not None and (newest is None or at_s > newest):
                    newest = at_s
    return newest


def is_part_of(expected: object, actual: object) -> bool:
    if actual is None and expected in ({}, []):
        return True  # the server does not return `egress: []`
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            is_part_of(value, actual.get(key)) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(is_part_of(item, its) for item, its in zip(expected, actual, strict=True))
        )
    if expected == actual:
        return True
    amount = read_quantity(expected)  # the server returns 1024Mi as 1Gi
    return amount is not None and amount == read_quantity(actual)
