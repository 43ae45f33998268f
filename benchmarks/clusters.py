"""Fifty worker pools for the advisor benchmark: sizes, kinds of slowness, paces, bounds and periods.

On half of them staleness must stay bounded, so asgd is excluded: else it would be
the answer nearly everywhere, and picking it would prove little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from paceline.config.train_config import TrainConfig
from paceline.sync.fault_rules import StragglerRule

SIZES = (4, 8)
RARELY = StragglerRule(probability=0.05, factor=10.0)
OFTEN = StragglerRule(probability=0.2, factor=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    pace_s: float
    bound: int  # of ssp, and of other modes with one
    period: int  # of localsgd and diloco
    is_bounded: bool  # modes that never wait are excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    name: str
    num_workers: int
    rules: tuple[StragglerRule, ...]
    settings: Settings
    seed: int

    @property
    def is_random(self) -> bool:
        """Whether the seed decides which worker is slow, and when."""
        return any(rule.probability < 1.0 for rule in self.rules)

    def config(self, *, steps: int) -> TrainConfig:
        return TrainConfig(
            num_workers=self.num_workers,
            steps=steps,
            batch_size=8,
            pace=self.settings.pace_s,
            straggler=self.rules,
            staleness=self.settings.bound,
            sync_every=self.settings.period,
            seed=self.seed,
        )


USUAL = Settings(pace_s=0.02, bound=3, period=8, is_bounded=False)
BOUNDED = Settings(pace_s=0.03, bound=8, period=16, is_bounded=True)


def cells() -> list[Cell]:
    """Each kind of slowness for each size under each settings; equal workers once for each size."""
    results: list[tuple[str, int, Sequence[StragglerRule], Settings]] = []
    results += [("equal", num_workers, (), USUAL) for num_workers in SIZES]
    for settings, num_workers in product((USUAL, BOUNDED), SIZES):
        results += [(kind, num_workers, rules, settings) for kind, rules in _slowness(num_workers)]
    return [
        Cell(
            name=f"{kind}, {n} workers, {s.pace_s * 1e3:.0f} ms, bound {s.bound}, H {s.period}"
            + (", no asgd" if s.is_bounded else ""),
            num_workers=n,
            rules=tuple(rules),
            settings=s,
            seed=number,
        )
        for number, (kind, n, rules, s) in enumerate(results)
    ]


def _slowness(num_workers: int) -> list[tuple[str, Sequence[StragglerRule]]]:
    half = num_workers // 2
    return [
        ("one 1.5x", _lasting(1, 1.5)),
        ("one 2x", _lasting(1, 2.0)),
        ("one 3x", _lasting(1, 3.0)),
        ("one 6x", _lasting(1, 6.0)),
        ("two 3x", _lasting(2, 3.0)),
        ("half 1.5x", _lasting(half, 1.5)),
        ("half 2x", _lasting(half, 2.0)),
        ("5 % 10x", [RARELY]),
        ("20 % 3x", [OFTEN]),
        ("one 3x and 5 % 10x", [*_lasting(1, 3.0), RARELY]),
        ("one 1.5x and 20 % 3x", [*_lasting(1, 1.5), OFTEN]),
        ("half 1.5x and 5 % 10x", [*_lasting(half, 1.5), RARELY]),
    ]


def _lasting(count: int, factor: float) -> list[StragglerRule]:
    return [StragglerRule(worker=rank, factor=factor) for rank in range(1, count + 1)]
