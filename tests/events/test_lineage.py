"""The lineage of generations has every step exactly once, and breaks in it are found."""

from tests.fixtures.wording import Wording

from paceline.events.lineage import Stretch, committed_at_end, lineage_of
from paceline.events.read import History, PlainEvent
from paceline.events.schema import StepRow


def entered(who: str, number: int, committed: int, workers: str = "a,b", at_ns: int = 0) -> PlainEvent:
    fields = {"number": number, "committed": committed, "workers": workers}
    return PlainEvent("generation_entered", who, at_ns, fields)


def lost(who: str, number: int, committed: int) -> PlainEvent:
    return PlainEvent("generation_lost", who, 0, {"number": number, "committed": committed})


def test_generations_follow_each_other_without_a_gap() -> None:
    events = [entered("a", 1, 0), entered("b", 1, 0), lost("a", 1, 7), entered("a", 2, 7, "a")]
    lineage = lineage_of(events, steps=10)
    assert lineage.problems == ()
    assert lineage.stretches == (Stretch(1, 0, 7, ("a", "b")), Stretch(2, 7, 10, ("a",)))


def test_a_worker_that_continues_may_not_be_rolled_back(wording: Wording) -> None:
    events = [entered("a", 1, 0), lost("a", 1, 7), entered("a", 2, 6)]
    wording("\n".join(lineage_of(events, steps=10).problems))


def test_what_only_a_dead_worker_had_may_be_made_again() -> None:
    replaced = PlainEvent("worker_started", "b", 0, {})
    events = [
        entered("a", 1, 0),
        entered("b", 1, 0),
        lost("b", 1, 8),
        lost("a", 1, 7),
        replaced,
        entered("a", 2, 7),
        entered("b", 2, 7),
    ]
    assert lineage_of(events, steps=10).problems == ()


def test_workers_of_one_generation_begin_at_one_step(wording: Wording) -> None:
    lineage = lineage_of([entered("a", 1, 0), entered("b", 1, 3)], steps=10)
    wording("\n".join(lineage.problems))


def test_a_run_that_begins_in_the_middle_without_a_checkpoint_has_lost_something() -> None:
    assert lineage_of([entered("a", 1, 5)], steps=10).problems
    assert not lineage_of([entered("a", 1, 5)], steps=10, first=5).problems


def test_in_modes_with_rounds_generations_begin_where_rounds_do(wording: Wording) -> None:
    def is_whole(result: int) -> bool:
        return result % 4 == 0

    whole = [entered("a", 1, 0), entered("a", 2, 8)]
    assert lineage_of(whole, steps=12, is_whole=is_whole).problems == ()
    torn = [entered("a", 1, 0), entered("a", 2, 7)]
    wording("\n".join(lineage_of(torn, steps=12, is_whole=is_whole).problems))
    wording("\n".join(lineage_of(whole, steps=11, is_whole=is_whole).problems))


def test_when_all_died_at_once_the_next_generation_may_go_back_to_a_checkpoint(wording: Wording) -> None:
    born = [PlainEvent("worker_started", who, 0, {}) for who in ("a", "b")]
    events = [*born, entered("a", 1, 0), entered("b", 1, 0), *born, entered("a", 2, 30), entered("b", 2, 30)]
    again = [*events, *born, entered("a", 3, 20), entered("b", 3, 20)]
    lineage = lineage_of(again, steps=50)
    assert lineage.problems == ()
    assert lineage.stretches == (Stretch(1, 0, 20, ("a", "b")), Stretch(3, 20, 50, ("a", "b")))
    survived = [*events, born[0], entered("a", 3, 20), entered("b", 3, 20)]
    wording("\n".join(lineage_of(survived, steps=50).problems))


def steps_from(first: int, end: int, start_ns: int) -> list[StepRow]:
    """Rows of the steps [first, end) of a run with one shard, all begun at `start_ns`."""
    phases = (0,) * 8
    return [
        StepRow(
            step,
            step,
            start_ns,
            *phases,
            loss=1.0,
            samples=1,
            bytes_out=0,
            bytes_in=0,
            version=0,
            synced=True,
        )
        for step in range(first, end)
    ]


def test_steps_lost_with_all_workers_do_not_count_unless_they_are_made_again() -> None:
    started = PlainEvent("worker_started", "a", 0, {})
    rolled_back = [
        started,
        entered("a", 1, 0, "a", at_ns=1),
        started,
        entered("a", 2, 20, "a", at_ns=100),
    ]
    history = History(plain=rolled_back, steps={0: steps_from(0, 50, 10)})
    assert committed_at_end(history, shards=1) == 20
    history.steps[0] += steps_from(20, 24, 110)
    assert committed_at_end(history, shards=1) == 24
    history.steps[0] += steps_from(24, 60, 120)
    assert committed_at_end(history, shards=1) == 60


def test_a_later_generation_of_survivors_does_not_bring_lost_steps_back() -> None:
    started = PlainEvent("worker_started", "a", 0, {})
    events = [
        started,
        entered("a", 1, 0, "a", at_ns=1),
        started,
        entered("a", 2, 20, "a", at_ns=100),
        entered("a", 3, 22, at_ns=200),
    ]
    history = History(plain=events, steps={0: [*steps_from(0, 50, 10), *steps_from(20, 22, 110)]})
    assert committed_at_end(history, shards=1) == 22


def test_generations_before_a_resume_do_not_count() -> None:
    resumed = PlainEvent("run_resumed", "launcher", 90, {"version": 20})
    events = [entered("a", 7, 30, "a", at_ns=1), resumed, entered("a", 1, 20, "a", at_ns=100)]
    history = History(plain=events, steps={0: [*steps_from(0, 20, 10), *steps_from(20, 25, 110)]})
    assert committed_at_end(history, shards=1) == 25
