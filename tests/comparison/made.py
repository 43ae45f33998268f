"""Measured runs with numbers made by hand, so that what follows from them can be worked out on paper."""

from collections.abc import Sequence

from paceline.comparison.assess import assess, quality_of, scaling_of, target_of
from paceline.comparison.measurement import Measured
from paceline.comparison.schema import Comparison, Evaluated, Machine
from paceline.comparison.verdict import describe_method, find_warnings, judge
from paceline.events.performance import LossPoint
from paceline.events.read import History
from paceline.events.schema import PHASES
from paceline.events.summary import Staleness
from paceline.plan.plan import Plan
from paceline.sync.fault_rules import StragglerRule

MACHINE = Machine(
    cpu="A processor <with> signs & more",
    processors=4,
    memory_bytes=8 << 30,
    system="Linux",
    python="3.11.7",
    torch="2.13.0",
    load=0.1,
)


def plan(mode: str, workers: int, *, pace_s: float = 0.01) -> Plan:
    is_alone = mode == "single"
    return Plan(
        run=mode,
        task="digits",
        mode=mode,
        num_workers=workers,
        steps=200,
        batch_sizes=(128 // workers,) * workers,
        pace_s=pace_s * (4 if is_alone else 1),
        stragglers=() if is_alone else (StragglerRule(worker=0, factor=3.0),),
    )


def run(
    mode: str,
    workers: int,
    seconds: float,
    *,
    number: int = 0,
    accuracy: float = 0.95,
    waiting: float = 0.0,
    histogram: dict[str, int] | None = None,
    evaluations: tuple[Evaluated, ...] = (),
    data: str = "",
    points: Sequence[LossPoint] | None = None,
) -> Measured:
    falling = [LossPoint(seconds * (i + 1) / 100, 256 * (i + 1), 2.0 * 0.97**i + 0.1) for i in range(100)]
    phases = dict.fromkeys(PHASES, 0.0) | {"forward": 1 - waiting, "wait": waiting}
    stale = histogram or {}
    count = sum(stale.values())
    return Measured(
        name=f"{mode}-{workers}-{number + 1}",
        plan=plan(mode, workers),
        seconds=seconds,
        samples=25_600,
        samples_per_s=25_600 / seconds,
        loss=0.2,
        metrics={"test_loss": 0.3, "test_accuracy": accuracy},
        phases_s=phases,
        bytes_out=1_000_000 * (workers - 1),
        bytes_in=1_000_000 * (workers - 1),
        staleness=None
        if histogram is None
        else Staleness(
            mean=sum(int(v) * n for v, n in stale.items()) / count,
            max=max(map(int, stale)),
            histogram=stale,
            max_gap=1,
            mean_age_s=0.01,
        ),
        points=list(falling if points is None else points),
        evaluations=evaluations,
        data=data,
        stopped_by="",
        started_unix_s=1_000.0 + number,
        history=History(),
    )


def runs(
    mode: str, workers: int, seconds: Sequence[float], accuracy: Sequence[float], **more: object
) -> list[Measured]:
    return [
        run(mode, workers, s, number=i, accuracy=a, **more)  # type: ignore[arg-type]  # whatever `run` takes
        for i, (s, a) in enumerate(zip(seconds, accuracy, strict=True))
    ]


def default_runs() -> dict[str, list[Measured]]:
    """Four workers of which one is slow: asgd is the one to take."""
    return {
        "single": runs("single", 1, (8.0, 8.1, 7.9), (0.95, 0.96, 0.94)),
        "ssgd-4": runs("ssgd", 4, (6.1, 6.2, 6.0), (0.95, 0.96, 0.94), waiting=0.5),
        "asgd-4": runs(
            "asgd", 4, (2.5, 2.6, 2.4), (0.949, 0.961, 0.938), histogram={"0": 30, "1": 50, "3": 500, "7": 20}
        ),
        "localsgd-4": runs("localsgd", 4, (6.0, 6.25, 5.95), (0.90, 0.91, 0.89), waiting=0.45),
    }


def comparison(values: dict[str, list[Measured]], *, machine: Machine = MACHINE) -> Comparison:
    """As app.compare puts it together, without folders."""
    plans = {label: mine[0].plan for label, mine in values.items()}
    quality = quality_of(values)
    target = target_of(values)
    cells = assess(values, "single", quality, target)
    return Comparison(
        paceline="0.0",
        task="digits",
        baseline="single",
        repeats=len(values["single"]),
        steps=200,
        samples=25_600,
        samples_per_step=128,
        pace_s=0.01,
        quality=quality,
        target=target,
        cells=cells,
        scaling=scaling_of(cells),
        verdict=judge(cells, "single", quality, target),
        warnings=tuple(find_warnings(cells, plans, "single", quality, [machine])),
        how=describe_method(plans, "single", quality, target, 1_437),
        machine=machine,
        order=tuple(run.name for mine in values.values() for run in mine),
    )
