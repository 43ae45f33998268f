"""Is it noticed when a part has a share twice, has lost one, or is ahead at the end?"""

from paceline.events.read import History, PlainEvent, sort_history
from paceline.events.schema import PartRow, ServerRow
from paceline.training.verify import verify_parts, verify_servers


def history(*shares: int, counted: int = 3, outcome: str = "finished") -> History:
    """Part 1 applied these shares; part 0 the first ones, in order."""
    server = [ServerRow("apply", n, 0, n, n, n + 1, n, 0, 0, 0, 1.0) for n in range(counted)]
    parts = [PartRow(100 + n, 1, 0, share, n + 1) for n, share in enumerate(shares)]
    plain = [
        PlainEvent("run_started", "launcher", 0, {}),
        PlainEvent("server_started", "server-0-a", 1, {"part": 0}),
        PlainEvent("run_finished", "launcher", 900, {"outcome": outcome}),
    ]
    return History(server=server, parts=parts, plain=plain)


def holds(found: History) -> bool:
    (finding,) = verify_parts(found, 2)
    return finding.ok


def test_each_share_once_in_an_order_of_its_own_holds() -> None:
    assert holds(history(2, 0, 1))
    assert verify_parts(history(0, 1, 2), 1) == []


def test_a_share_twice_missing_or_ahead_at_the_end_is_noticed() -> None:
    assert not holds(history(0, 1, 1, 2))
    assert not holds(history(0, 2))
    assert not holds(history(0, 1, 2, 3))
    assert holds(history(0, 1, 2, 3, outcome="failed")), "the run was lost while share 3 was on its way"


def test_two_servers_that_both_made_a_version_are_noticed() -> None:
    found = history(0, 1, 2)
    found.parts[2] = found.parts[2]._replace(version=2)
    assert not holds(found)


def test_rows_that_both_servers_wrote_and_what_came_after_a_checkpoint_count_once() -> None:
    found = history(0, 1, 2)
    found.parts += found.parts[1:]
    back = PlainEvent("server_restored", "server-1-a", 102, {"part": 1, "version": 2, "pid": 1})
    found.parts.append(PartRow(103, 1, 1, 2, 3))  # done again
    found.plain.insert(2, back)
    sort_history(found)
    assert [row.position for row in found.parts] == [0, 1, 2]
    assert found.parts[-1].rank == 1
    assert len(found.server) == 3, "part 0 did not go back"
    assert holds(found)


def test_each_part_has_hashes_of_its_own() -> None:
    hashes = {"server-0-a": "x", "server-0-b": "x", "server-1-a": "y", "server-1-b": "y"}
    assert verify_servers(history(0, 1, 2), hashes)[-1].ok
    assert not verify_servers(history(0, 1, 2), {**hashes, "server-1-b": "x"})[-1].ok
