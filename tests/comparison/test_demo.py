"""The demo comparison is fair: equal work for every mode."""

from tests.fixtures.wording import Wording

from paceline.cli.compare import demo_table
from paceline.comparison.demo import FACTOR, INTRODUCTION, LEFT_OUT, STRAGGLER, DemoRow, demo_plans, meaning
from paceline.plan.catalog import MODES
from paceline.worker.entry.virtual import run_virtual


def test_every_mode_does_equal_work_on_equal_samples() -> None:
    plans = demo_plans()
    compared = [name for name, mode in MODES.items() if not mode.optimizers and not mode.is_split]
    assert [plan.mode for plan in plans] == compared
    assert len({plan.total_samples for plan in plans}) == 1
    assert len({plan.seed for plan in plans}) == 1
    together = [plan for plan in plans if plan.mode != "single"]
    assert len({(plan.stragglers, plan.pace_s, plan.num_workers) for plan in together}) == 1


def test_the_numbers_of_the_demonstration_follow_from_its_plans() -> None:
    """In virtual time the table is exact: who waits for a straggler runs at its pace."""
    seconds = {p.mode: run_virtual(p).elapsed_s for p in demo_plans() if p.mode != "ddp"}
    assert seconds["ssgd"] == seconds["ps"] == seconds["ssp"] == seconds["localsgd"]
    four_workers_rate = 3 + 1 / FACTOR
    assert abs(seconds["ssgd"] / seconds["asgd"] - four_workers_rate / (4 / FACTOR)) < 0.02
    assert seconds["single"] / seconds["ssgd"] == 4 / FACTOR


def test_the_explanation_uses_the_numbers_of_the_table(wording: Wording) -> None:
    def row(mode: str, seconds: float, waiting: float = 0.0, staleness: float | None = None) -> DemoRow:
        return DemoRow(
            mode=mode,
            seconds=seconds,
            samples_per_s=1.0,
            accuracy=0.9,
            waiting=waiting,
            megabytes=1.0,
            staleness=staleness,
            versus_ssgd=4.0 / seconds,
        )

    text = meaning([row("single", 8.0), row("ssgd", 4.0, 0.5), row("asgd", 2.0, 0.0, 3.2), row("ssp", 4.0)])
    for number in ("50%", "2.0x", "2.00x", "3.2"):
        assert number in text
    wording(text)
    assert STRAGGLER == 1


def test_the_table_spells_out_every_strategy_in_100_columns() -> None:
    rows = [
        DemoRow(
            mode=plan.mode,
            seconds=12.34,
            samples_per_s=12_345.0,
            accuracy=1.0,
            waiting=1.0,
            megabytes=12.34,
            staleness=12.34,
            versus_ssgd=12.34,
        )
        for plan in demo_plans()
    ]
    heading, rule, *lines = demo_table(rows)
    for row, line in zip(rows, lines, strict=False):
        assert line.startswith(f"{row.mode} ")
        assert line.endswith(f"  {MODES[row.mode].title}")
    assert max(map(len, [heading, rule, *lines[: len(rows)]])) <= 100
    assert all(mode.title for mode in MODES.values())


def test_the_demo_states_how_many_of_the_modes_it_shows() -> None:
    assert f"{len(demo_plans())} of {len(MODES)} modes" in INTRODUCTION
    assert all(name in INTRODUCTION for name in LEFT_OUT)
