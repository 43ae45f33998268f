"""The supervisor's orders when workers are lost, asked to leave, or added by an operator."""

from dataclasses import dataclass, field

from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.launchers.elastic import ElasticSupervisor
from paceline.launchers.supervision import (
    Granted,
    Ledger,
    OperatorRequest,
    OperatorResponse,
    Refused,
    RestartPolicy,
)
from paceline.plan.plan import Elastic, OnGiveUp, OnSlow


@dataclass
class FakeActions:
    asked: list[OperatorRequest] = field(default_factory=list)
    given: list[OperatorResponse] = field(default_factory=list)

    def requests(self) -> list[OperatorRequest]:
        result, self.asked = self.asked, []
        return result

    def answer(self, given: OperatorResponse) -> None:
        self.given.append(given)

    silent: dict[str, int] = field(default_factory=dict)
    has_no_majority: bool = False

    def stopping(self) -> None: ...

    def is_alone(self) -> bool:
        return self.has_no_majority

    def take_messages(self) -> list[str]:
        return []

    def given_up(self) -> dict[str, int]:
        return self.silent


@dataclass
class Registry:
    told: list[str] = field(default_factory=list)

    def lost(self, who: str, pid: int, reason: str) -> None:
        self.told.append(f"{who}: {reason}")

    def give_up(self) -> None:
        self.told.append("given up")


class Office:
    """A supervisor with two workers, and fakes of all that it uses."""

    def __init__(self, *, budget: int = 20, min_workers: int = 1, **policies: OnSlow | OnGiveUp) -> None:
        elastic = Elastic(workers=2, min_workers=min_workers, max_workers=3, **policies)  # type: ignore[arg-type]  # the policies that a test names
        self.actions, self.registry, self.said = FakeActions(), Registry(), list[str]()
        restarts = RestartPolicy(budget=budget, min_workers=min_workers, longest_s=0.0)
        self.supervisor = ElasticSupervisor(
            {},
            self.registry,
            restarts,
            self.said.append,
            elastic,
            shards=12,
            actions=self.actions,
            stop_run=self.stop,
            timeout_s=0.0,
        )
        self.stops = 0
        self.ledger = Ledger()
        self.supervisor.started("worker-0", 100)
        self.supervisor.started("worker-1", 101)

    def stop(self) -> None:
        self.stops += 1

    def ask(self, request: OperatorRequest) -> list[dict[str, object]]:
        self.actions.asked.append(request)
        return self.orders()

    def orders(self) -> list[dict[str, object]]:
        return [dict(order) for order in self.supervisor.orders()]

    def exit(self, who: str, code: int) -> None:
        self.supervisor.exited(who, code, self.ledger)


def test_an_added_worker_is_forked_under_a_free_name(wording: Wording) -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "add")) == [{"op": "fork", "index": 2}]
    assert isinstance(office.actions.given[0], Granted)
    wording("\n".join(office.said))


def test_a_removed_worker_must_leave_and_is_not_replaced(wording: Wording) -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "remove")) == [{"op": "leave", "index": 1}]
    office.supervisor.left("worker-1")
    office.exit("worker-1", 0)
    assert office.orders() == []
    wording(office.said[-1])
    office.exit("worker-0", -9)
    wording(office.said[-1])


def test_a_worker_that_reached_the_end_before_it_could_leave_is_not_replaced() -> None:
    office = Office(on_slow=OnSlow.REPLACE)
    office.supervisor.slow("worker-1", "10 times as long")
    office.exit("worker-1", 0)
    office.exit("worker-0", 0)
    assert office.orders() == [{"op": "leave", "index": 1}, {"op": "end"}]


def test_a_worker_that_came_too_late_does_not_end_the_run_nor_is_it_replaced() -> None:
    office = Office()
    office.supervisor.left("worker-1")
    office.exit("worker-1", 0)
    assert office.orders() == []
    office.exit("worker-0", 0)
    assert office.orders() == [{"op": "end"}]


def test_a_removed_worker_that_is_killed_before_it_left_is_reported_to_the_coordinator(
    wording: Wording,
) -> None:
    office = Office()
    office.ask(OperatorRequest(5, "remove"))
    office.exit("worker-1", -9)
    (reported,) = office.registry.told
    wording(reported)
    assert office.orders() == []


def test_a_run_is_stopped_once_however_often_that_is_requested() -> None:
    office = Office()
    for number in (5, 6):
        assert office.ask(OperatorRequest(number, "stop")) == []
    assert [type(given) for given in office.actions.given] == [Granted, Granted]
    assert office.stops == 1


def test_no_more_than_the_most_and_nothing_once_the_run_ends(wording: Wording) -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "add", 2)) == []
    office.exit("worker-1", 0)
    assert office.ask(OperatorRequest(6, "add")) == []
    assert [type(given) for given in office.actions.given] == [Refused, Refused]
    wording(office.said[-1])


def test_a_run_with_servers_keeps_the_workers_that_it_began_with(wording: Wording) -> None:
    office = Office()
    office.supervisor.server_restarts = RestartPolicy(budget=3, min_workers=1)
    assert office.ask(OperatorRequest(5, "add")) == []
    wording("\n".join(office.said))


def test_a_slow_worker_is_replaced_only_by_that_policy_and_counts(wording: Wording) -> None:
    tolerant = Office()
    tolerant.supervisor.slow("worker-1", "10 times as long")
    assert tolerant.orders() == []
    strict = Office(on_slow=OnSlow.REPLACE)
    strict.supervisor.slow("worker-1", "10 times as long")
    strict.supervisor.slow("worker-1", "10 times as long")  # said again before it is gone
    assert strict.orders() == [{"op": "leave", "index": 1}]
    strict.supervisor.left("worker-1")
    strict.exit("worker-1", 0)
    assert strict.orders() == [{"op": "fork", "index": 1}]
    wording(strict.said[-1])


def test_giving_up_ends_the_run_unless_it_is_to_wait_for_an_operator() -> None:
    office = Office(budget=0, min_workers=2)
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "kill"}]
    assert office.ledger.cause() is not None


def test_a_paused_run_keeps_the_survivors_reports_its_state_and_continues_on_request(
    wording: Wording,
) -> None:
    office = Office(budget=0, min_workers=2, on_give_up=OnGiveUp.PAUSE)
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "pause", "is_paused": True, "saver": 0}]
    assert office.ledger.cause() is None
    wording("\n".join(office.said[-2:]))
    assert office.ask(OperatorRequest(5, "add")) == [
        {"op": "pause", "is_paused": False},
        {"op": "fork", "index": 1},
    ]
    wording(office.said[-2])


def test_a_paused_run_without_survivors_fails_with_the_reason_when_it_is_stopped(wording: Wording) -> None:
    office = Office(budget=0, on_give_up=OnGiveUp.PAUSE)
    office.exit("worker-1", -9)
    office.exit("worker-0", -9)
    assert {"op": "end"} not in office.orders()
    office.supervisor.stopping()
    assert office.orders() == [{"op": "end"}]
    cause = office.ledger.cause()
    assert cause is not None
    wording(cause.what)


def test_what_was_given_up_and_does_not_come_back_is_ended_and_replaced(wording: Wording) -> None:
    office = Office()
    office.actions.silent = {"worker-1": 101}
    assert office.orders() == [{"op": "reap", "who": "worker-1", "pid": 101}]
    assert office.orders() == []  # once
    office.exit("worker-1", -9)
    wording(office.registry.told[-1])
    wording(office.said[-1])
    until(lambda: office.orders() == [{"op": "fork", "index": 1}], "it is started again")
    office.supervisor.started("worker-1", 102)
    assert office.orders() == []  # another process has its name


def test_what_was_given_up_does_not_hold_up_the_end() -> None:
    office = Office()
    office.exit("worker-0", 0)
    office.actions.silent = {"worker-1": 101}
    assert office.orders() == [{"op": "reap", "who": "worker-1", "pid": 101}]
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "end"}]
    assert office.ledger.cause() is None


def test_without_its_coordinator_a_run_that_stops_replaces_none_and_waits_for_none() -> None:
    office = Office()
    office.supervisor.stopping()
    office.actions.has_no_majority = True
    assert office.orders() == [{"op": "alone"}]
    assert office.registry.told == ["given up"]
    office.exit("worker-0", -9)
    assert office.orders() == []
    office.exit("worker-1", 0)
    assert office.orders() == [{"op": "end"}]


def test_a_worker_of_a_draining_host_leaves_and_is_replaced_without_a_mark_against_it() -> None:
    office = Office(budget=6)
    for _ in range(5):  # as often as would quarantine a worker that is lost
        office.supervisor.evacuate("worker-1", "its host drains")
        office.supervisor.evacuate("worker-1", "its host drains")  # reported again before it has left
        assert office.orders() == [{"op": "leave", "index": 1}]
        office.supervisor.left("worker-1")
        office.exit("worker-1", 0)
        until(lambda: {"op": "fork", "index": 1} in office.orders(), "it is started again")
        office.supervisor.started("worker-1", 102)
    assert office.registry.told == []


def test_new_room_is_used_up_to_the_maximum_and_not_once_the_run_ends() -> None:
    office = Office()
    office.supervisor.grow(8, "a host has joined")
    assert office.orders() == [{"op": "fork", "index": 2}]
    office.supervisor.started("worker-2", 102)
    office.supervisor.grow(8, "another host has joined")
    assert office.orders() == []
    office.exit("worker-2", 1)
    office.supervisor.cancel()
    office.supervisor.grow(8, "a third host has joined")
    assert office.orders() == []
