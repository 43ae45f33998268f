"""The lineage of generations has every step exactly once, and breaks in it are found."""

from paceline.events.lineage import Stretch, lineage_of
from paceline.events.read import PlainEvent


def entered(who: str, number: int, committed: int, workers: str = "a,b") -> PlainEvent:
    fields = {"number": number, "committed": committed, "workers": workers}
    return PlainEvent("generation_entered", who, 0, fields)


def lost(who: str, number: int, committed: int) -> PlainEvent:
    return PlainEvent("generation_lost", who, 0, {"number": number, "committed": committed})


def test_generations_follow_each_other_without_a_gap() -> None:
    events = [entered("a", 1, 0), entered("b", 1, 0), lost("a", 1, 7), entered("a", 2, 7, "a")]
    lineage = lineage_of(events, steps=10)
    assert lineage.problems == ()
    assert lineage.stretches == (Stretch(1, 0, 7, ("a", "b")), Stretch(2, 7, 10, ("a",)))


def test_a_worker_that_goes_on_may_not_be_taken_back() -> None:
    events = [entered("a", 1, 0), lost("a", 1, 7), entered("a", 2, 6)]
    assert (
        "a had committed 7 steps in generation 1, and was taken back to 6"
        in lineage_of(events, steps=10).problems[0]
    )


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


def test_workers_of_one_generation_begin_at_one_step() -> None:
    lineage = lineage_of([entered("a", 1, 0), entered("b", 1, 3)], steps=10)
    assert any("different steps: [0, 3]" in problem for problem in lineage.problems)


def test_a_run_that_begins_in_the_middle_without_a_checkpoint_has_lost_something() -> None:
    assert lineage_of([entered("a", 1, 5)], steps=10).problems
    assert not lineage_of([entered("a", 1, 5)], steps=10, first=5).problems


def test_in_modes_with_rounds_generations_begin_where_rounds_do() -> None:
    def is_whole(done: int) -> bool:
        return done % 4 == 0

    whole = [entered("a", 1, 0), entered("a", 2, 8)]
    assert lineage_of(whole, steps=12, is_whole=is_whole).problems == ()
    torn = [entered("a", 1, 0), entered("a", 2, 7)]
    assert "generation 2 began at step 7, in the middle of a round" in (
        lineage_of(torn, steps=12, is_whole=is_whole).problems
    )
    assert any(
        "ended at step 11" in problem for problem in lineage_of(whole, steps=11, is_whole=is_whole).problems
    )


def test_when_all_died_at_once_the_next_generation_may_go_back_to_a_checkpoint() -> None:
    born = [PlainEvent("worker_started", who, 0, {}) for who in ("a", "b")]
    events = [*born, entered("a", 1, 0), entered("b", 1, 0), *born, entered("a", 2, 30), entered("b", 2, 30)]
    again = [*events, *born, entered("a", 3, 20), entered("b", 3, 20)]
    lineage = lineage_of(again, steps=50)
    assert lineage.problems == ()
    assert lineage.stretches == (Stretch(1, 0, 20, ("a", "b")), Stretch(3, 20, 50, ("a", "b")))
    survived = [*events, born[0], entered("a", 3, 20), entered("b", 3, 20)]
    assert any(
        "generation 3 began at step 20" in problem for problem in lineage_of(survived, steps=50).problems
    )
