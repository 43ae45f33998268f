"""Virtual time: workers run in a deterministic order."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.wording import Wording

from paceline.transport.virtual_time import Turns


def test_time_jumps_to_the_next_wake_up() -> None:
    turns, seen = Turns(), list[tuple[str, int]]()

    def sleeper(name: str, naps: list[float]) -> Callable[[], None]:
        def body() -> None:
            for nap in naps:
                turns.sleep(nap)
                seen.append((name, turns.now_ns()))

        return body

    assert turns.run([sleeper("slow", [3600.0]), sleeper("fast", [1.0, 0.5])]) == [None, None]
    assert seen == [("fast", 10**9), ("fast", 1_500_000_000), ("slow", 3600 * 10**9)]


def test_a_tie_goes_to_the_first_request() -> None:
    turns, seen = Turns(), list[int]()

    def body(number: int) -> Callable[[], None]:
        def live() -> None:
            turns.sleep(1.0)
            seen.append(number)

        return live

    turns.run([body(number) for number in range(5)])
    assert seen == [0, 1, 2, 3, 4]


def test_a_wait_ends_when_its_condition_comes_true_and_at_that_moment() -> None:
    turns, box, ended = Turns(), list[int](), list[int]()

    def waiter() -> None:
        assert turns.wait_until(lambda: bool(box), 100.0)
        ended.append(turns.now_ns())

    def giver() -> None:
        turns.sleep(2.0)
        box.append(1)
        turns.sleep(5.0)

    assert turns.run([waiter, giver]) == [None, None]
    assert ended == [2 * 10**9]


def test_a_wait_that_is_in_vain_ends_exactly_at_its_deadline() -> None:
    turns, ended = Turns(), list[tuple[bool, int]]()

    def waiter() -> None:
        ended.append((turns.wait_until(lambda: False, 4.0), turns.now_ns()))

    turns.run([waiter, lambda: turns.sleep(60.0)])
    assert ended == [(False, 4 * 10**9)]
    assert turns.now_ns() == 60 * 10**9


def test_an_exception_of_a_worker_is_returned_and_stops_no_other() -> None:
    turns, seen = Turns(), list[int]()

    def fails() -> None:
        raise ValueError("no")

    def works() -> None:
        turns.sleep(1.0)
        seen.append(1)

    errors = turns.run([fails, works])
    assert isinstance(errors[0], ValueError)
    assert errors[1] is None
    assert seen == [1]


def test_only_a_running_worker_can_sleep(wording: Wording) -> None:
    with wording.raises(AssertionError):
        Turns().sleep(1.0)


@given(naps=st.lists(st.lists(st.floats(0, 10), max_size=6), min_size=1, max_size=4))
def test_the_same_naps_give_the_same_order_of_events_and_time_never_goes_back(
    naps: list[list[float]],
) -> None:
    def transcript() -> list[tuple[int, int]]:
        turns, seen = Turns(), list[tuple[int, int]]()

        def body(number: int) -> Callable[[], None]:
            def live() -> None:
                for nap in naps[number]:
                    turns.sleep(nap)
                    seen.append((turns.now_ns(), number))

            return live

        turns.run([body(number) for number in range(len(naps))])
        return seen

    first = transcript()
    assert transcript() == first
    assert [at for at, _ in first] == sorted(at for at, _ in first)
    assert len(first) == sum(map(len, naps))
