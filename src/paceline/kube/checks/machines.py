"""How many GPUs and EFA devices does a type of machine have? As Amazon lists them; others are not known."""

_GPUS = {
    "p3.2xlarge": 1,
    "p3.8xlarge": 4,
    "p3.16xlarge": 8,
    "p3dn.24xlarge": 8,
    "p4d.24xlarge": 8,
    "p4de.24xlarge": 8,
    "p5.4xlarge": 1,
    "p5.48xlarge": 8,
    "p5e.48xlarge": 8,
    "p5en.48xlarge": 8,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 8,
    "g4dn.12xlarge": 4,
    "g4dn.metal": 8,
}
_GPUS |= {f"g4dn.{size}": 1 for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge")}
for _family in ("g5", "g6", "g6e"):
    _GPUS |= {f"{_family}.{size}": 1 for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge")}
    _GPUS |= {f"{_family}.12xlarge": 4, f"{_family}.24xlarge": 4, f"{_family}.48xlarge": 8}

_EFA = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
}
for _family in ("g5", "g6", "g6e"):
    _EFA |= {f"{_family}.{n}xlarge": 1 for n in (8, 12, 16, 24, 48)}
_EFA |= {"g6e.24xlarge": 2, "g6e.48xlarge": 4}


def gpus_of(machine: str) -> int | None:
    return _GPUS.get(machine)


def efa_of(machine: str) -> int | None:
    return _EFA.get(machine)
