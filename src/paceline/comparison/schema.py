"""Schema of comparison.json: everything that a report shows, and nothing else.

Values that cannot be known are null: intervals of a single repeat, the accuracy
of a task that has none, a target that was never reached. Numbers that are not
finite are null too. The fields are explained in docs/concepts/what-is-measured.md.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import DamagedRecordError, UnreadableFileError
from paceline.plan.codec import Json, decode, to_json

SCHEMA = "paceline.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value, and between what it lies with 95 % confidence; no interval with one repeat."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Metric by which models are compared."""

    name: str
    is_share: bool  # an accuracy, from 0 to 1, of which more is better; otherwise a loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of every run, and how soon each reaches it."""

    what: str  # the running training loss, or a metric of the evaluations
    value: float
    is_evaluated: bool  # on the way, on validation data; otherwise it is the training loss
    is_share: bool  # an accuracy: more is better
    is_chosen: bool  # not requested: the best value that every run reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    mean: float
    max: int
    histogram: dict[str, int]  # versions between reading and applying: gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Running training loss of one repeat."""

    seconds: tuple[float, ...]
    samples: tuple[int, ...]
    loss: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics of the model at one moment of one repeat."""

    seconds: float
    samples: int
    metrics: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One mode with one number of workers, over all repeats."""

    label: str
    mode: str
    workers: int
    seconds: float  # the median of the repeats, from the first step's start to the last one's end
    seconds_all: tuple[float, ...]  # by round
    speedup: Estimate  # the baseline's seconds over these
    efficiency: Estimate  # speedup over workers
    speed_in_words: str
    samples_per_s: float
    quality: Estimate | None  # the mean of the repeats
    quality_all: tuple[float | None, ...]
    quality_difference: Estimate | None  # to the baseline, in pairs of the same round
    quality_in_words: str
    loss: float | None  # training loss at the end, mean over the repeats
    target_s: float | None  # median time to the target; null: not every repeat reached it
    target_s_all: tuple[float | None, ...]
    bytes_out: int  # by all workers, mean over the repeats
    bytes_in: int
    staleness: Stale | None  # of all repeats together; null without a server
    phases: dict[str, float]  # shares of the workers' time
    metrics: dict[str, float | None]  # means over the repeats
    epochs: float | None
    curve: Curve  # of the repeat with the median time
    evaluations: tuple[Evaluated, ...]  # of the same
    data: str  # what a result says of its data, such as synthetic
    runs: tuple[str, ...]  # folders, by round


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How a mode's speedup grows with its workers, by Amdahl's law."""

    mode: str
    serial: float  # the share of the work that does not get faster
    limit: float | None  # the speedup that no number of workers goes beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    use: str  # the label of what is recommended
    headline: str
    reasons: tuple[str, ...]
    others: dict[str, str]  # by label: why not


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine of the measurement."""

    cpu: str
    processors: int
    memory_bytes: int
    system: str
    python: str
    torch: str
    load: float  # runnable processes before the first run, averaged over a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    paceline: str
    task: str
    baseline: str  # its label
    repeats: int
    steps: int
    samples: int  # that every run trained on
    samples_per_step: int
    pace_s: float  # of a step, with the most workers; 0: as fast as it goes
    quality: Quality | None
    target: Target | None
    cells: dict[str, Cell]  # by label, baseline first
    scaling: dict[str, Scaling]  # by mode; empty with one number of workers
    verdict: Verdict
    warnings: tuple[str, ...]
    how: dict[str, str]  # how it was measured, by topic
    machine: Machine
    order: tuple[str, ...]  # names of the runs as they were started
    schema: str = SCHEMA


def dumps(comparison: Comparison) -> str:
    return json.dumps(finite(to_json(comparison)), indent=2, allow_nan=False) + "\n"


def read(path: Path) -> Comparison:
    try:
        comparison = decode(Comparison, path.read_text(encoding="utf-8"), schema=SCHEMA)
    except OSError as error:
        raise UnreadableFileError(
            f"cannot read {path}: {error.strerror}", "name a folder that paceline compare wrote"
        ) from error
    except ValueError as error:
        raise DamagedRecordError(
            f"{path} is not a comparison this version can read: {error}",
            "run paceline compare again; finished runs are not repeated",
        ) from error
    assert isinstance(comparison, Comparison), "decode(Comparison, …) builds a Comparison"
    return comparison


def finite(value: Json) -> Json:
    """JSON has no NaN and no infinity."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [finite(item) for item in value]
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case _:
            return value
