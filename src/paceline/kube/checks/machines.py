"""GPUs and EFA devices of each type of machine, from `kube/data/machines.json`; other types are not known."""

import json
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    dated: date
    efa_chart: str  # the chart that was pinned at that date; a newer one asks for another look at this list
    gpus: dict[str, int]
    efa: dict[str, int]


@cache
def machines() -> Machines:
    told = json.loads((files("paceline.kube") / "data" / "machines.json").read_text("utf-8"))
    rows = told["machines"]
    return Machines(
        dated=date.fromisoformat(told["dated"]),
        efa_chart=told["efa_chart"],
        gpus={name: row["gpus"] for name, row in rows.items() if "gpus" in row},
        efa={name: row["efa"] for name, row in rows.items() if "efa" in row},
    )


def gpus_of(machine: str) -> int | None:
    return machines().gpus.get(machine)


def efa_of(machine: str) -> int | None:
    return machines().efa.get(machine)
