"""Ratio reports: median and spread over interleaved rounds, with the goal."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    name: str
    goal: float
    at_least: bool  # False: the goal is an upper limit
    rounds: tuple[float, ...]
    detail: str

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def is_met(self) -> bool:
        return self.median >= self.goal if self.at_least else self.median <= self.goal

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "met" if self.is_met else "MISSED"
        low, high = min(self.rounds), max(self.rounds)
        return (
            f"{self.name:<44} {self.median:7.3f}  [{low:.3f} … {high:.3f}]  "
            f"goal {sign} {self.goal:g}  {verdict}  {self.detail}"
        )


def tell_and_write(measured: Iterable[Ratio], path: Path) -> None:
    """Print each ratio as soon as it is measured; write the file once all are."""
    ratios = []
    for ratio in measured:
        ratios.append(ratio)
        print(ratio.line(), flush=True)
    write(ratios, path)
    print(f"written to {path}")


def write(ratios: Sequence[Ratio], path: Path, **more: object) -> None:
    """`more` are further results of the benchmark, as JSON values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(r), "median": r.median, "met": r.is_met} for r in ratios]
    path.write_text(json.dumps({"schema": "paceline.bench/1", "ratios": rows, **more}, indent=2) + "\n")
