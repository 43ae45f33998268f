"""The supervisor's orders when workers are lost, asked to leave, or added by an operator."""

from dataclasses import dataclass, field

from tests.fixtures.waiting import until

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
class Desk:
    asked: list[OperatorRequest] = field(default_factory=list)
    given: list[OperatorResponse] = field(default_factory=list)

    def wishes(self) -> list[OperatorRequest]:
        found, self.asked = self.asked, []
        return found

    def answer(self, given: OperatorResponse) -> None:
        self.given.append(given)

    silent: dict[str, int] = field(default_factory=dict)
    has_no_majority: bool = False

    def stopping(self) -> None: ...

    def is_alone(self) -> bool:
        return self.has_no_majority

    def news(self) -> list[str]:
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
    """A supervisor with two workers, and everybody it talks to."""

    def __init__(self, *, budget: int = 20, min_workers: int = 1, **policies: OnSlow | OnGiveUp) -> None:
        elastic = Elastic(workers=2, min_workers=min_workers, max_workers=3, **policies)  # type: ignore[arg-type]  # the policies that a test names
        self.desk, self.registry, self.said = Desk(), Registry(), list[str]()
        restarts = RestartPolicy(budget=budget, min_workers=min_workers, longest_s=0.0)
        self.supervisor = ElasticSupervisor(
            {}, self.registry, restarts, self.said.append, elastic, shards=12, desk=self.desk, timeout_s=0.0
        )
        self.ledger = Ledger()
        self.supervisor.started("worker-0", 100)
        self.supervisor.started("worker-1", 101)

    def ask(self, wish: OperatorRequest) -> list[dict[str, object]]:
        self.desk.asked.append(wish)
        return self.orders()

    def orders(self) -> list[dict[str, object]]:
        return [dict(order) for order in self.supervisor.orders()]

    def exit(self, who: str, code: int) -> None:
        self.supervisor.exited(who, code, self.ledger)


def test_an_added_worker_is_forked_under_a_free_name() -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "add")) == [{"op": "fork", "index": 2}]
    assert isinstance(office.desk.given[0], Granted)
    assert office.said == ["worker-2 added: 3 workers are wanted"]


def test_a_removed_worker_is_asked_to_leave_and_not_replaced() -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "remove")) == [{"op": "leave", "index": 1}]
    office.supervisor.left("worker-1")
    office.exit("worker-1", 0)
    assert office.orders() == []
    assert office.said[-1] == "worker-1 left the run"
    office.exit("worker-0", -9)
    assert "it is replaced" in office.said[-1]


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


def test_a_removed_worker_that_is_killed_before_it_left_is_told_to_the_coordinator() -> None:
    office = Office()
    office.ask(OperatorRequest(5, "remove"))
    office.exit("worker-1", -9)
    assert office.registry.told == ["worker-1: killed by signal 9"]
    assert office.orders() == []


def test_no_more_than_the_most_and_nothing_once_the_run_ends() -> None:
    office = Office()
    assert office.ask(OperatorRequest(5, "add", 2)) == []
    office.exit("worker-1", 0)
    assert office.ask(OperatorRequest(6, "add")) == []
    assert [type(given) for given in office.desk.given] == [Refused, Refused]
    assert office.said[-1] == "not done: it is ending"


def test_a_run_with_servers_keeps_the_workers_that_it_began_with() -> None:
    office = Office()
    office.supervisor.server_restarts = RestartPolicy(budget=3, min_workers=1)
    assert office.ask(OperatorRequest(5, "add")) == []
    assert office.said == ["not done: a run with parameter servers keeps the workers that it began with"]


def test_a_slow_worker_is_replaced_only_by_that_policy_and_counts() -> None:
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
    assert "worker-1 was lost (it was slow: 10 times as long)" in strict.said[-1]


def test_giving_up_ends_the_run_unless_it_is_to_wait_for_an_operator() -> None:
    office = Office(budget=0, min_workers=2)
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "kill"}]
    assert office.ledger.cause() is not None


def test_a_paused_run_keeps_who_is_left_says_what_is_known_and_goes_on_when_asked() -> None:
    office = Office(budget=0, min_workers=2, on_give_up=OnGiveUp.PAUSE)
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "pause", "is_paused": True, "saver": 0}]
    assert office.ledger.cause() is None
    assert "worker-1 was lost 1 times, at last: killed by signal 9" in office.said[-2]
    assert "worker-0 saves what it has" in office.said[-2]
    assert "paceline workers add" in office.said[-1]
    assert office.ask(OperatorRequest(5, "add")) == [
        {"op": "pause", "is_paused": False},
        {"op": "fork", "index": 1},
    ]
    assert "the run goes on: 2 workers are enough" in office.said[-2]


def test_a_paused_run_that_nobody_lives_in_fails_with_the_reason_when_it_is_stopped() -> None:
    office = Office(budget=0, on_give_up=OnGiveUp.PAUSE)
    office.exit("worker-1", -9)
    office.exit("worker-0", -9)
    assert {"op": "end"} not in office.orders()
    office.supervisor.stopping()
    assert office.orders() == [{"op": "end"}]
    cause = office.ledger.cause()
    assert cause is not None
    assert "0 workers are fewer than the 1" in cause.what


def test_what_was_given_up_and_does_not_come_back_is_ended_and_replaced() -> None:
    office = Office()
    office.desk.silent = {"worker-1": 101}
    assert office.orders() == [{"op": "reap", "who": "worker-1", "pid": 101}]
    assert office.orders() == []  # once
    office.exit("worker-1", -9)
    assert "gave no sign of life" in office.registry.told[-1]
    assert "it is replaced" in office.said[-1]
    until(lambda: office.orders() == [{"op": "fork", "index": 1}], "it is started again")
    office.supervisor.started("worker-1", 102)
    assert office.orders() == []  # another process has its name


def test_what_was_given_up_does_not_hold_up_the_end() -> None:
    office = Office()
    office.exit("worker-0", 0)
    office.desk.silent = {"worker-1": 101}
    assert office.orders() == [{"op": "reap", "who": "worker-1", "pid": 101}]
    office.exit("worker-1", -9)
    assert office.orders() == [{"op": "end"}]
    assert office.ledger.cause() is None


def test_without_its_coordinator_a_run_that_stops_replaces_none_and_waits_for_none() -> None:
    office = Office()
    office.supervisor.stopping()
    office.desk.has_no_majority = True
    assert office.orders() == [{"op": "alone"}]
    assert office.registry.told == ["given up"]
    office.exit("worker-0", -9)
    assert office.orders() == []
    office.exit("worker-1", 0)
    assert office.orders() == [{"op": "end"}]
