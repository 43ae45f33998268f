"""What is measured beside a run that trains? Its machine, and its coordinator, where it has one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.plan.plan import EventDetail, Launcher, Plan
from paceline.watch.collector import Collector


@contextmanager
def collecting(plan: Plan, run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Nothing of a run without events, or in virtual time."""
    if plan.events is EventDetail.OFF or plan.launcher is Launcher.VIRTUAL:
        yield
        return
    coordinator = None
    if plan.elastic is not None:
        from paceline.app.coordinator_look import CoordinatorLook  # brings grpc, which other runs do not need

        coordinator = CoordinatorLook(run_dir)
    # Elastic workers share memory with us, so they are here, whoever started them.
    is_local = plan.launcher is Launcher.LOCAL or plan.elastic is not None
    with Collector(run_dir, note, has_local_workers=is_local, coordinator=coordinator):
        yield
