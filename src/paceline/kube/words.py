"""How are names and amounts written in Kubernetes? Read, never guessed."""

import re
from decimal import Decimal

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
LONGEST_LABEL = 63
LONGEST_RAY_NAME = 47  # of a RayJob: KubeRay adds to it, and refuses what is longer
LONGEST_RAY_CLUSTER = 53

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
    number, unit = Decimal(match[1]), match[2] or ""
    if unit in _BINARY:
        return number * _BINARY[unit]
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return number * Decimal("1" + unit)
    return number * Decimal(_UNITS.get(unit, "1"))


def write_quantity(amount: Decimal, resource: str) -> str:
    """As kubectl writes it: bytes as 512Mi or 1536Mi, parts of a CPU as 1500m, others as a plain number.

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
    """A device such as nvidia.com/gpu: whole ones only, and as many asked for as allowed."""
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


def without_escapes(text: str) -> str:
    """The text as a terminal shows it, without colours and other control sequences."""
    return _ESCAPES.sub("", text)
