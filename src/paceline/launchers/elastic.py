"""Elastic supervisor: reports lost workers to the coordinator, and replaces them by policy.

The launcher sees the end of a process long before its lease expires, so it reports the loss at once. Whether
and when a lost worker is replaced, and how an operator's request is answered, is decided in supervision.py.
Every decision is logged with its reason.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from paceline.core.clock import ActiveTimeout, monotonic_s
from paceline.events.schema import exit_reason
from paceline.launchers.supervision import (
    Effect,
    Failure,
    GiveUp,
    Granted,
    LeaveOut,
    Ledger,
    OperatorRequest,
    OperatorResponse,
    Refused,
    Replace,
    RestartPolicy,
    Workforce,
    answer_request,
)
from paceline.plan.codec import Json
from paceline.plan.plan import Elastic, OnGiveUp, OnSlow

Message = dict[str, Json]
Notify = Callable[[str], None]
FROZEN_AT_END_S = 5.0  # at the end of a run, longest wait for participants that were declared lost
POLL_S = 0.1  # interval for handling requests while no live worker reports progress


class Registry(Protocol):
    """The coordinator's list of members, as the supervisor uses it."""

    def lost(self, participant: str, pid: int, reason: str) -> None:
        """This process is certainly gone."""
        ...

    def give_up(self) -> None:
        """The coordinator is not waited for any more."""
        ...


class ActionSource(Protocol):
    """Requests of operators, and the answers to them."""

    def requests(self) -> list[OperatorRequest]:
        """Those that are new."""
        ...

    def answer(self, given: OperatorResponse) -> None: ...

    def take_messages(self) -> list[str]:
        """Notices about the source itself, such as that the coordinator is silent."""
        ...

    def stopping(self) -> None:
        """The run ends soon: stop waiting for a coordinator without a majority. Safe in signal handlers."""
        ...

    def is_alone(self) -> bool:
        """Whether the run continues without the coordinator."""
        ...

    def given_up(self) -> dict[str, int]:
        """Pids, by name, of participants that the coordinator lost by silence and that have not rejoined."""
        ...


class NoActions:
    """No requests."""

    def requests(self) -> list[OperatorRequest]:
        return []

    def answer(self, given: OperatorResponse) -> None: ...

    def take_messages(self) -> list[str]:
        return []

    def stopping(self) -> None: ...

    def is_alone(self) -> bool:
        return False

    def given_up(self) -> dict[str, int]:
        return {}


@dataclass(slots=True)
class ElasticSupervisor:
    coordinator: Message
    registry: Registry
    restarts: RestartPolicy
    say: Notify  # one line for the terminal and for the event log
    elastic: Elastic
    shards: int
    server_restarts: RestartPolicy | None = None  # the patience with servers, if the run has any
    actions: ActionSource = field(default_factory=NoActions)
    stop_run: Callable[[], None] = lambda: None  # as Ctrl-C does
    timeout_s: float = 60.0  # --timeout: a lost participant may rejoin within this time
    rng: random.Random = field(default_factory=random.Random)
    _pids: dict[str, int] = field(default_factory=dict)  # pids of live participants
    _waiting: dict[str, float] = field(default_factory=dict)  # participants to start, and when
    _leaving: dict[str, str | None] = field(default_factory=dict)  # and why it is replaced; None: it is not
    _goodbyes: set[str] = field(default_factory=set)  # participants that left before the run's end
    _frozen: dict[tuple[str, int], ActiveTimeout] = field(
        default_factory=dict
    )  # declared lost, but the process is alive
    _ended: set[tuple[str, int]] = field(default_factory=set)  # those of them whose process is being ended
    _errors: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # what, hint, code
    _hopeless: set[str] = field(default_factory=set)  # those whose error a replacement would repeat
    _orders: list[Message] = field(default_factory=list)
    _is_ending: bool = False  # a participant has finished: none is replaced any more
    _has_result: bool = False  # a server has finished
    _paused: Failure | None = None  # an operator is waited for: why
    _is_stopping: bool = False
    _is_alone: bool = False  # the run ends without its coordinator
    _ledger: Ledger = field(default_factory=Ledger)

    def started(self, participant: str, pid: int) -> None:
        self._pids[participant] = pid

    def failed(
        self, participant: str, message: str, hint: str, *, is_hopeless: bool = False, code: str = ""
    ) -> None:
        self._errors[participant] = (message, hint, code)
        if is_hopeless:
            self._hopeless.add(participant)

    def left(self, participant: str) -> None:
        """Record that it leaves before the run's end, on request or after a late join. Its exit follows."""
        self._goodbyes.add(participant)

    def exited(self, participant: str, code: int, ledger: Ledger) -> None:
        pid = self._pids.pop(participant)
        self._ledger = ledger
        self._ended.discard((participant, pid))
        if code == 0 and participant not in self._goodbyes:
            self._has_result = self._has_result or _is_server(participant)
            self.cancel()
        elif participant in self._leaving:
            self._left(participant, pid, code)
        elif code != 0:
            self._lost(participant, pid, self._why(participant, code))
        if not self._pids and not self._waiting and (self._paused is None or self._is_ending):
            self._orders.append({"op": "end"})
            if self.server_restarts is not None and self._is_ending and not self._has_result:
                message = "every server was lost before the final parameters were saved"
                hint = "run `paceline train --resume RUN`: it resumes from the newest checkpoint"
                ledger.error(Failure(participant, message, hint, is_consequence=False))

    def slow(self, participant: str, reason: str) -> None:
        """The other workers have found it slow, and not just for a moment."""
        is_there = participant in self._pids and participant not in self._leaving
        if self.elastic.on_slow is OnSlow.REPLACE and is_there and not self._is_ending:
            self._leaving[participant] = f"it was slow: {reason}"
            self._orders.append(_order("leave", participant))
            self.say(f"{participant} is removed, and will be replaced: {reason}")

    def evacuate(self, participant: str, reason: str) -> None:
        """Its host goes away: it leaves after a step, and its replacement is started on another host."""
        if participant not in self._pids or participant in self._leaving or self._is_ending:
            return
        self._leaving[participant] = reason
        if _is_server(participant) and self.server_restarts is not None:  # its backup takes over
            self.server_restarts.forgive(participant)  # an announced move says nothing against it
            self._orders.append({"op": "reap", "who": participant, "pid": self._pids[participant]})
        else:
            self.restarts.forgive(participant)
            self._orders.append(_order("leave", participant))

    def grow(self, count: int, why: str) -> None:
        """There is room for this many more workers; the plan's maximum may allow fewer."""
        present = {*self._pids, *self._waiting} - set(self._leaving)
        elastic = self.elastic
        count = min(count, elastic.max_workers - len(present))
        if count < 1 or self._is_ending or self._is_stopping or self.server_restarts is not None:
            return
        workforce = Workforce(
            present, set(self._leaving), elastic.min_workers, elastic.max_workers, self.shards
        )
        given = answer_request(OperatorRequest(0, "add", count), workforce)
        if isinstance(given, Granted):
            self._resize(given, len(present) + len(given.start))
            self.say(f"{given.reason}: {why}")

    def cancel(self) -> None:
        self._is_ending = True
        self._waiting.clear()

    def stopping(self) -> None:
        """Handle a stop request of the run; may be called from a signal handler."""
        self._is_stopping = True
        self.actions.stopping()

    def wait_s(self) -> float | None:
        if not self._waiting:
            return POLL_S
        return max(0.0, min(POLL_S, min(self._waiting.values()) - monotonic_s()))

    def orders(self) -> list[Message]:
        for text in self.actions.take_messages():
            self.say(text)
        if self.actions.is_alone() and not self._is_alone:
            self._is_alone = True
            self.registry.give_up()
            self._orders.append({"op": "alone"})
        for request in self.actions.requests():
            self._take(request)
        self._end_the_frozen()
        now_s = monotonic_s()
        for participant in [participant for participant, at_s in self._waiting.items() if at_s <= now_s]:
            del self._waiting[participant]
            if _is_server(participant):
                self._orders.append({"op": "fork_server", "who": participant})
            else:
                self._orders.append(_order("fork", participant))
        if self._paused is not None and self._is_stopping and not (self._pids or self._is_ending):
            self._ledger.error(self._paused)  # no worker is left to stop normally
            self._paused = None
            self._orders.append({"op": "end"})
        orders = self._orders
        self._orders = []
        return orders

    def _end_the_frozen(self) -> None:
        """End lost participants after a grace period: they must not keep their name or delay the end."""
        given_up = {key for key in self.actions.given_up().items() if self._pids.get(key[0]) == key[1] > 0}
        if self._is_alone and self._has_result:
            # A server that is no backup yet receives from the coordinator that all work is done.
            given_up |= {
                (participant, pid)
                for participant, pid in self._pids.items()
                if _is_server(participant) and pid > 0
            }
        self._frozen = {key: patience for key, patience in self._frozen.items() if key in given_up}
        for participant, pid in sorted(given_up - self._ended):
            limit_s = min(self.timeout_s, FROZEN_AT_END_S) if self._is_ending else self.timeout_s
            patience = self._frozen.setdefault((participant, pid), ActiveTimeout(limit_s))
            if self._is_ending:
                patience.at_most(limit_s)
            if not patience.next_s():
                self._ended.add((participant, pid))
                reason = f"its heartbeats stopped, and it did not recover within {limit_s:g} s"
                self._errors.setdefault(participant, (reason, "see its log", ""))
                self._orders.append({"op": "reap", "who": participant, "pid": pid})
                self.say(f"{participant} (process {pid}) is killed: {reason}")

    def _take(self, request: OperatorRequest) -> None:
        present = {*self._pids, *self._waiting} - set(self._leaving)
        elastic = self.elastic
        workforce = Workforce(
            present, set(self._leaving), elastic.min_workers, elastic.max_workers, self.shards
        )
        is_stop = request.kind == "stop"
        if self._is_ending and not (is_stop and self._is_stopping):
            given: OperatorResponse = Refused(request.number, "it is ending")
        elif self.server_restarts is not None and not is_stop:
            saves = "writes checkpoints by --checkpoint-every only"
            clause = saves if request.kind == "checkpoint" else "has a fixed number of workers"
            given = Refused(request.number, f"a run with parameter servers {clause}")
        else:
            given = answer_request(request, workforce)
        if isinstance(given, Granted):
            self._grant(given, len(present) + len(given.start))
        self.say(given.reason if isinstance(given, Granted) else f"refused: {given.reason}")
        self.actions.answer(given)

    def _grant(self, given: Granted, after: int) -> None:
        match given.effect:
            case Effect.WORKERS:
                self._resize(given, after)
            case Effect.CHECKPOINT:
                self._orders.append({"op": "save"})
            case Effect.END:
                if not self._is_stopping:  # a second signal would end the run without a checkpoint
                    self._is_stopping = True
                    self.stop_run()
            case _:
                assert_never(given.effect)

    def _resize(self, given: Granted, after: int) -> None:
        for participant in given.leave:
            if self._waiting.pop(participant, None) is None:
                self._leaving[participant] = None
                self._orders.append(_order("leave", participant))
        for participant in given.start:
            self.restarts.forgive(participant)  # an operator requested it, regardless of earlier losses
            self._waiting[participant] = monotonic_s()
        if self._paused is not None and given.start and after >= self.elastic.min_workers:
            self._paused = None
            self.restarts.renew()
            self._orders.append({"op": "pause", "is_paused": False})
            self.say(f"the run continues: {after} workers are enough, and the restart budget is reset")

    def _left(self, participant: str, pid: int, code: int) -> None:
        why = self._leaving.pop(participant)
        self._goodbyes.discard(participant)
        if code != 0:  # it ended before it could leave in order
            self.registry.lost(participant, pid, self._why(participant, code))
        if why is None:
            self.say(f"{participant} left the run")
        else:
            self._decide(participant, why, "see its log")

    def _why(self, participant: str, code: int) -> str:
        message, *_ = self._errors.get(participant, ("",))
        return message or exit_reason(code)

    def _lost(self, participant: str, pid: int, why: str) -> None:
        _, hint, code = self._errors.pop(participant, ("", "", ""))
        self.registry.lost(participant, pid, why)
        self._decide(participant, why, hint or "see its log", code)

    def _decide(self, participant: str, why: str, hint: str, code: str = "") -> None:
        if self._is_ending or self._paused is not None:
            state = "ending" if self._is_ending else "paused"
            self.say(f"{participant} was lost ({why}) while the run was {state}")
            return
        if self._is_alone:  # a replacement could not join
            self._ledger.error(Failure(participant, why, hint, is_consequence=True, code=code))
            return
        if participant in self._hopeless:
            self.say(
                f"{participant} ended ({why}); a replacement would fail in the same way, so the run ends"
            )
            self._ledger.error(Failure(participant, why, hint, is_consequence=False, code=code))
            self.cancel()
            self._orders.append({"op": "kill"})
            return
        restarts = self.restarts
        if _is_server(participant):
            assert self.server_restarts is not None, "a run with servers configures their replacement"
            restarts = self.server_restarts
        # Pid 0: still starting, and perhaps without resources.
        living = sum(
            pid > 0 and _replacement_group(other) == _replacement_group(participant)
            for other, pid in self._pids.items()
        )
        decision = restarts.lost(participant, why, monotonic_s(), living=living, jitter=self.rng.random())
        match decision:
            case Replace(_, at_s, reason):
                self._waiting[participant] = at_s
                self.say(reason)
            case LeaveOut(_, reason):
                self.say(reason)
            case GiveUp(reason):
                failure = Failure(participant, f"{why}; {reason}", hint, is_consequence=False, code=code)
                self._give_up(failure, reason)

    def _give_up(self, failure: Failure, reason: str) -> None:
        self._waiting.clear()
        if self.elastic.on_give_up is OnGiveUp.FAIL:
            self.say(reason)
            self._ledger.error(failure)
            self._orders.append({"op": "kill"})
            return
        self._paused = failure
        first = min(
            (participant for participant, pid in self._pids.items() if pid > 0), key=_index, default=None
        )
        saver = None if first is None else _index(first)
        self._orders.append({"op": "pause", "is_paused": True, "saver": saver})
        saved = (
            f"{first} writes a checkpoint" if first is not None else "no worker is left to write a checkpoint"
        )
        self.say(f"paused: {reason}. {self.restarts.describe()}. {saved}")
        self.say(
            "to continue: `paceline workers add RUN`; to end: Ctrl-C, and later `paceline train --resume RUN`"
        )


def _replacement_group(participant: str) -> str:
    """Participants that can replace each other: all workers, or the two servers."""
    return participant.rpartition("-")[0]


def _is_server(participant: str) -> bool:
    return participant.startswith("server-")


def _order(op: str, participant: str) -> Message:
    return {"op": op, "index": _index(participant)}


def _index(participant: str) -> int:
    return int(participant.removeprefix("worker-"))
