"""Dynamic bound: stays in its range, and rises only where a shorter wait is predicted."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.ids import Clock, Rank
from paceline.sync.admission import Admission, BoundController, Bounded, DynamicBounded

MS = 1_000_000


def admission_of(low: int, extra: int, workers: int) -> tuple[Admission, DynamicBounded]:
    rule = DynamicBounded(low, BoundController(extra, workers))
    return Admission(rule, {Rank(r): Clock(0) for r in range(workers)}), rule


@given(
    low=st.integers(0, 3),
    extra=st.integers(0, 4),
    workers=st.integers(1, 5),
    picks=st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 50)), max_size=120),
)
def test_no_schedule_drives_the_bound_out_of_its_range(
    low: int, extra: int, workers: int, picks: list[tuple[int, int]]
) -> None:
    admission, rule = admission_of(low, extra, workers)
    reading = {rank for r in range(workers) for rank in admission.join(Rank(r), Clock(0)).readers}
    now_ns = 0
    for pick, passed_ms in picks:
        now_ns += passed_ms * MS
        rank = sorted(reading)[pick % len(reading)]  # the slowest always reads, so there is someone
        reading.remove(rank)
        reading |= set(admission.push(rank, now_ns=now_ns).readers)
        slowest = min(admission.clocks.values())
        assert all(low <= rule.bound_of(Rank(r)) <= low + extra for r in range(workers))
        assert all(admission.clocks[r] - slowest <= low + extra for r in reading)
        assert all(admission.clocks[held] - slowest > low for held in admission.held)


@given(
    bound=st.integers(0, 3),
    workers=st.integers(1, 5),
    picks=st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 50)), max_size=120),
)
def test_without_a_range_every_answer_is_that_of_a_fixed_bound(
    bound: int, workers: int, picks: list[tuple[int, int]]
) -> None:
    moving, _ = admission_of(bound, 0, workers)
    fixed = Admission(Bounded(bound), {Rank(r): Clock(0) for r in range(workers)})
    reading: set[Rank] = set()
    for r in range(workers):
        release = moving.join(Rank(r), Clock(0))
        assert release == fixed.join(Rank(r), Clock(0))
        reading |= set(release.readers)
    for number, (pick, passed_ms) in enumerate(picks):
        rank = sorted(reading)[pick % len(reading)]
        release = moving.push(rank, now_ns=number * passed_ms * MS)
        assert release == fixed.push(rank)
        reading = (reading - {rank}) | set(release.readers)


def granted(mine_ms: tuple[int, int], theirs_ms: tuple[int, int], extra: int = 4) -> int:
    """What worker 0 gets for its second push, one step beyond the bound, given both workers' two pushes."""
    controller = BoundController(extra, 2)
    for at_ms in theirs_ms:
        controller.note(1, at_ms * MS, beyond=-1, slowest=1)
    for at_ms, beyond in zip(mine_ms, (0, 1), strict=True):
        controller.note(0, at_ms * MS, beyond=beyond, slowest=1)
    return controller.granted[0]


def test_as_many_steps_are_granted_as_bring_it_to_the_slowest_ones_next_push() -> None:
    # The slowest pushes at 130, 230, …; this worker would push at 110, 120, 130: three steps, no waiting.
    assert granted(mine_ms=(90, 100), theirs_ms=(-70, 30)) == 3
    # It would push at 110 at the earliest, and the slowest pushes right now: waiting now costs nothing.
    assert granted(mine_ms=(90, 100), theirs_ms=(-100, 0)) == 0
    # Three would be best, but only two are allowed.
    assert granted(mine_ms=(90, 100), theirs_ms=(-70, 30), extra=2) == 2


def test_before_anyone_has_pushed_twice_nothing_is_foretold_and_nothing_granted() -> None:
    controller = BoundController(4, 2)
    controller.note(0, 10 * MS, beyond=0, slowest=1)
    controller.note(0, 20 * MS, beyond=1, slowest=1)
    assert controller.granted == [0, 0]


def test_what_was_granted_ends_when_the_worker_is_within_the_lower_bound_again() -> None:
    controller = BoundController(4, 2)
    for at_ms in (-70, 30):
        controller.note(1, at_ms * MS, beyond=-1, slowest=1)
    for at_ms, beyond in ((90, 0), (100, 1), (110, 2)):
        controller.note(0, at_ms * MS, beyond=beyond, slowest=1)
        assert controller.granted[0] == (3 if beyond > 0 else 0)
    controller.note(0, 140 * MS, beyond=0, slowest=1)
    assert controller.granted == [0, 0]
