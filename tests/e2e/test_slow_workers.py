"""Slow workers are detected, given less work or replaced, and the run ends with the same bits."""

from pathlib import Path

from tests.e2e.test_workers_command import stop_and_prove
from tests.fixtures.processes.command import Running, training
from tests.fixtures.runs.elastic_runs import events

from paceline.events.read import PlainEvent

RUN = ["--task", "digits", "--batch-size", "8", "--num-workers", "3", "--shards", "12", "--pace", "10ms"]


def is_found(run: Running) -> bool:
    plain_events = [event for event in events(run, "slow_worker") if event.fields["worker"] == "worker-1"]
    return any(event.fields["is_slow"] for event in plain_events)


def test_the_shards_are_dealt_by_speed_and_the_bits_stay_the_same(tmp_path: Path) -> None:
    slow = ["--straggler", "worker=1,factor=10,from=20,over=10", "--on-slow", "rebalance"]
    with training(tmp_path / "run", *RUN, *slow, participants=3) as run:
        run.until(lambda: is_found(run), "worker-1 is found slow")
        run.until(lambda: _has_fewest(run), "worker-1 has fewest shards")
        stop_and_prove(run)
        dealt = events(run, "shards_dealt")
        assert all(" ms " in str(event.fields["reason"]) for event in dealt)
        (flagged, *_) = events(run, "slow_worker")
        assert "shards" in str(flagged.fields["reason"])


def test_a_worker_without_shards_keeps_the_counters_of_batch_norm(tmp_path: Path) -> None:
    """It makes no forward pass, and its model must still equal that of the others."""
    model = ["--task", "paceline.laws.tasks:TinyTask", "--task-option", "batch_norm=true"]
    slow = ["--straggler", "worker=1,factor=20,from=20", "--on-slow", "rebalance"]
    shape = ["--batch-size", "8", "--num-workers", "3", "--shards", "3", "--pace", "10ms"]
    with training(tmp_path / "run", *model, *shape, *slow, participants=3) as run:
        run.until(
            lambda: any(_counts(event)["worker-1"] == 0 for event in events(run, "shards_dealt")), "none"
        )
        stop_and_prove(run)


def _has_fewest(run: Running) -> bool:
    dealt = events(run, "shards_dealt")
    if not dealt:
        return False
    by_name = _counts(dealt[-1])
    return by_name["worker-1"] < min(by_name["worker-0"], by_name["worker-2"])


def _counts(event: PlainEvent) -> dict[str, int]:
    """Shards by worker."""
    counts = map(int, str(event.fields["counts"]).split(","))
    return dict(zip(str(event.fields["workers"]).split(","), counts, strict=True))


def test_a_worker_that_became_slow_is_replaced_once_and_the_reason_is_reported(tmp_path: Path) -> None:
    slow = ["--straggler", "worker=1,factor=6,from=20", "--on-slow", "replace"]
    with training(tmp_path / "run", *RUN, *slow, participants=3) as run:
        before = [e.fields["pid"] for e in events(run, "worker_started") if e.who == "worker-1"]

        def pids() -> list[object]:
            return [e.fields["pid"] for e in events(run, "worker_started") if e.who == "worker-1"]

        run.until(lambda: len(pids()) >= 2, "worker-1 is replaced")
        assert pids()[0] == before[0]
        messages = [str(event.fields["decision"]) for event in events(run, "supervision")]
        assert sum(text.startswith("worker-1 ") for text in messages) >= 2, messages
        assert any(text.startswith("worker-1 ") and "slow" in text for text in messages)
        stop_and_prove(run)


def test_by_default_a_slow_worker_is_only_reported(tmp_path: Path) -> None:
    slow = ["--straggler", "worker=1,factor=6"]
    with training(tmp_path / "run", *RUN, *slow, participants=3) as run:
        run.until(lambda: is_found(run), "worker-1 is found slow")
        stop_and_prove(run)
        assert events(run, "shards_dealt") == []
        assert len(events(run, "worker_started")) == 3
