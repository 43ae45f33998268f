"""`paceline demo`: every mode on XOR with one slow worker, and what that means."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.options import common_options
from paceline.cli.output import emit, say
from paceline.cli.session import Session

if TYPE_CHECKING:
    from paceline.app.demo import DemoRow
    from paceline.app.progress import Watcher
    from paceline.plan.codec import Json


@click.command("demo")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Where the runs go, one folder per mode.",
)
@common_options
def demo(session: Session, run_dir: Path) -> None:
    """Train XOR under every mode with one 3x straggler, on equal work, and compare."""
    from paceline.app.train import warm_up

    with warm_up() as launcher:
        from paceline.app import demo as the_demo
        from paceline.app.progress import SilentWatcher
        from paceline.plan.codec import to_json

        say(session, the_demo.INTRODUCTION)

        def watch(mode: str) -> "Watcher":
            say(session, f"  {mode} …")
            return SilentWatcher()

        rows = the_demo.run_demo(session.folder / run_dir, watch, launcher=launcher)
        meaning = the_demo.meaning(rows)
    data: list[Json] = [to_json(row) for row in rows]
    emit(session, "demo", {"rows": data, "meaning": meaning}, [*_table(rows), "", meaning])


def _table(rows: "list[DemoRow]") -> list[str]:
    heads = f"{'mode':<10}{'seconds':>8}{'samples/s':>11}{'vs ssgd':>9}{'waiting':>9}{'MB sent':>9}"
    heads += f"{'staleness':>11}{'accuracy':>10}"
    lines = [heads, "-" * len(heads)]
    for row in rows:
        stale = "-" if row.staleness is None else f"{row.staleness:.2f}"
        waiting = "-" if row.waiting is None else f"{row.waiting:.0%}"
        lines.append(
            f"{row.mode:<10}{row.seconds:>8.2f}{row.samples_per_s:>11,.0f}{row.versus_ssgd:>8.2f}x"
            f"{waiting:>9}{row.megabytes:>9.2f}{stale:>11}{row.accuracy:>10.1%}"
        )
    return lines
