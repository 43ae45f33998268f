"""`paceline verify` excuses rows that a killed worker may have left unwritten, and no others."""

from dataclasses import replace

from tests.fixtures.runs.plans import small_plan

from paceline.events.read import History, PlainEvent
from paceline.events.schema import StepRow
from paceline.plan.plan import Elastic, StrategyOptions
from paceline.training.verify_work import verify_shares

SHARDS = 2
BATCH = 4
PLAN = replace(
    small_plan("localsgd", num_workers=SHARDS, steps=8, strategy=StrategyOptions(sync_every=4)),
    batch_sizes=(BATCH,) * SHARDS,
    elastic=Elastic(workers=1, min_workers=1, max_workers=1),
)


def row(step: int, shard: int, start_ns: int) -> StepRow:
    position = step * SHARDS + shard
    phases = (0,) * 8
    traffic = {"bytes_out": 0, "bytes_in": 0, "version": 0}
    return StepRow(step, position, start_ns, *phases, loss=1.0, samples=BATCH, synced=True, **traffic)


def history(*rows: StepRow) -> History:
    """One worker, killed after its first round was saved; its replacement finishes the run."""
    started = PlainEvent("worker_started", "worker-0", 0, {})
    entered = {"workers": "worker-0", "state": "00000000"}
    events = [
        started,
        PlainEvent("generation_entered", "worker-0", 1, {"number": 1, "committed": 0, **entered}),
        started,
        PlainEvent("generation_entered", "worker-0", 100, {"number": 2, "committed": 4, **entered}),
        PlainEvent("worker_finished", "worker-0", 200, {"reason": "done"}),
        PlainEvent("run_finished", "launcher", 200, {"outcome": "finished"}),
    ]
    return History(plain=events, steps={0: list(rows)})


SECOND_ROUND = [row(step, shard, 110) for shard in range(SHARDS) for step in range(4, 8)]


def test_any_step_of_the_round_in_which_a_worker_was_killed_may_be_unwritten() -> None:
    written = [row(step, 0, 10) for step in range(4)] + [row(step, 1, 10) for step in range(2)]
    assert all(finding.ok for finding in verify_shares(PLAN, history(*written, *SECOND_ROUND)))


def test_a_step_that_its_replacement_has_not_done_is_missing() -> None:
    written = [row(step, shard, 10) for shard in range(SHARDS) for step in range(4)]
    findings = verify_shares(PLAN, history(*written, *SECOND_ROUND[:-2]))
    assert not all(finding.ok for finding in findings)
