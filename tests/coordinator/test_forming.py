"""When the leader forms the next generation, and of which workers."""

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state.generations import FIRST_WAIT_MS, JOIN_WAIT_MS, Later, next_generation
from paceline.coordinator.state.model import RunRecord


def record(*workers: str, want: int = 3, least: int = 1, most: int = 4) -> RunRecord:
    run = pb.Run(run="r", want_workers=want, min_workers=least, max_workers=most, phase=pb.RUN_RUNNING)
    run_record = RunRecord(run)
    for number, name in enumerate(workers, start=1):
        run_record.workers[name] = pb.Worker(worker=name, role="worker", incarnation=number)
    return run_record


def in_generation(run_record: RunRecord, *workers: str, is_revoked: bool = False) -> RunRecord:
    run_record.run.generation = 1
    run_record.generations[1] = pb.Generation(
        number=1, workers=workers, is_revoked=is_revoked, revoked_because="c died"
    )
    return run_record


def formed(run_record: RunRecord, waited_ms: int = 0) -> list[str]:
    decision = next_generation(run_record, waited_ms)
    assert isinstance(decision, pb.FormGeneration), decision
    return list(decision.workers)


def test_the_first_generation_waits_for_as_many_workers_as_are_wanted() -> None:
    assert next_generation(record("a", "b"), 0) == Later(FIRST_WAIT_MS)
    assert formed(record("a", "b", "c")) == ["a", "b", "c"]


def test_but_not_for_ever() -> None:
    assert formed(record("a", "b"), FIRST_WAIT_MS) == ["a", "b"]


def test_survivors_continue_at_once_in_their_old_order() -> None:
    run_record = in_generation(record("a", "b", "d"), "b", "c", "a", is_revoked=True)
    assert formed(run_record) == ["b", "a", "d"]
    decision = next_generation(run_record, 0)
    assert isinstance(decision, pb.FormGeneration)
    assert decision.previous == 1
    assert "c died" in decision.reason


def test_newcomers_wait_a_moment_for_each_other() -> None:
    run_record = in_generation(record("a", "b"), "a")
    assert next_generation(run_record, 30) == Later(JOIN_WAIT_MS - 30)
    assert formed(run_record, JOIN_WAIT_MS) == ["a", "b"]


def test_nothing_is_formed_of_too_few_nor_without_need_nor_for_others() -> None:
    assert next_generation(record("a", least=2, want=1), 10**9) is None
    assert next_generation(in_generation(record("a", "b"), "a", "b"), 10**9) is None
    assert next_generation(record("a", "b", want=0), 10**9) is None


def test_no_more_take_part_than_the_run_takes() -> None:
    run_record = in_generation(record("a", "b", "c", most=2), "a", is_revoked=True)
    assert formed(run_record) == ["a", "b"]
    full = in_generation(record("a", "b", "c", most=2), "a", "b")
    assert next_generation(full, 10**9) is None
