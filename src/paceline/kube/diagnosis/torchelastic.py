"""The rank that failed first by torchelastic's own clock: every agent prints a summary."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.kube.diagnosis.snapshot import Log

_SUMMARY = re.compile(
    r"Root Cause \(first observed failure\):.*?"
    r"time\s*:\s*(?P<time>[\d-]+_[\d:]+).*?"
    r"host\s*:\s*(?P<host>\S+).*?"
    r"rank\s*:\s*(?P<rank>\d+)"
    r"(?:.{0,200}?exitcode\s*:\s*(?P<code>-?\d+))?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, order=True)
class Root:
    time: str  # as it is written there, which sorts as text
    host: str
    rank: int
    exit_code: int | None = field(default=None, compare=False)

    def is_of(self, pod: str, rank: int | None) -> bool:
        """By its host, if the pod is known: the rank of a pod counts nodes, and this one processes."""
        host = self.host.split(".")[0]
        # A pod of an Indexed Job has a tail that its host's name lacks.
        return pod == host or pod.startswith(f"{host}-") if pod else rank == self.rank


def first_failure(logs: Iterable[Log]) -> Root | None:
    found = [
        Root(one["time"], one["host"], int(one["rank"]), None if one["code"] is None else int(one["code"]))
        for log in logs
        for one in _SUMMARY.finditer(log.text)
    ]
    return min(found, default=None)
