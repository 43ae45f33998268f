"""What happens to the workers of an elastic run? Losses are told to the coordinator, and replaced by rule.

The launcher sees the end of a process long before a lease runs out, so it says
so at once. Whether and when a lost worker is replaced is decided in restarts.py,
what an operator's wish leads to in resizing.py. Everything decided is said, with its reason.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.core.clock import ActiveTimeout, monotonic_s
from paceline.launchers.supervision import (
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
FROZEN_AT_END_S = 5.0  # while the run ends, what was given up is waited for no longer than this
POLL_S = 0.1  # how soon a wish is heard while nobody lives who would report progress


class Registry(Protocol):
    """What knows the members of the run."""

    def lost(self, who: str, pid: int, reason: str) -> None:
        """This process is certainly gone."""
        ...

    def give_up(self) -> None:
        """The coordinator is not waited for any more."""
        ...


class ActionSource(Protocol):
    """Where operators ask, and are answered."""

    def wishes(self) -> list[OperatorRequest]:
        """Those that are new."""
        ...

    def answer(self, given: OperatorResponse) -> None: ...

    def news(self) -> list[str]:
        """What there is to say about the desk itself, such as that the coordinator is silent."""
        ...

    def stopping(self) -> None:
        """The run ends soon, so a coordinator without a majority is given up; for signal handlers too."""
        ...

    def is_alone(self) -> bool:
        """Was the coordinator given up?"""
        ...

    def given_up(self) -> dict[str, int]:
        """Pids, by name, of participants that the coordinator lost by silence and that did not come back."""
        ...


class NoActions:
    """Nobody asks for anything."""

    def wishes(self) -> list[OperatorRequest]:
        return []

    def answer(self, given: OperatorResponse) -> None: ...

    def news(self) -> list[str]:
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
    say: Notify  # one line for whoever watches, and for the event log
    elastic: Elastic
    shards: int
    server_restarts: RestartPolicy | None = None  # the patience with servers, if the run has any
    desk: ActionSource = field(default_factory=NoActions)
    timeout_s: float = 60.0  # --timeout: a participant that was given up may come back within this time
    dice: random.Random = field(default_factory=random.Random)
    _pids: dict[str, int] = field(default_factory=dict)  # of those who live
    _waiting: dict[str, float] = field(default_factory=dict)  # who is started, and when
    _leaving: dict[str, str | None] = field(default_factory=dict)  # and why it is replaced; None: it is not
    _goodbyes: set[str] = field(default_factory=set)  # of those who left before the run's end
    _frozen: dict[tuple[str, int], ActiveTimeout] = field(
        default_factory=dict
    )  # given up, but the process lives
    _ended: set[tuple[str, int]] = field(default_factory=set)  # those of them whose process is being ended
    _errors: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # what, hint, code
    _hopeless: set[str] = field(default_factory=set)  # whose error a replacement would meet again
    _orders: list[Message] = field(default_factory=list)
    _is_ending: bool = False  # somebody has finished: nobody is replaced any more
    _has_result: bool = False  # a server has finished
    _paused: Failure | None = None  # an operator is waited for: why
    _is_stopping: bool = False
    _is_alone: bool = False  # the run ends without its coordinator
    _ledger: Ledger = field(default_factory=Ledger)

    def started(self, who: str, pid: int) -> None:
        self._pids[who] = pid

    def failed(self, who: str, what: str, hint: str, *, is_hopeless: bool = False, code: str = "") -> None:
        self._errors[who] = (what, hint, code)
        if is_hopeless:
            self._hopeless.add(who)

    def left(self, who: str) -> None:
        """It goes without the run's end: asked to, or because it came too late; its exit follows."""
        self._goodbyes.add(who)

    def exited(self, who: str, code: int, ledger: Ledger) -> None:
        pid, self._ledger = self._pids.pop(who), ledger
        self._ended.discard((who, pid))
        if code == 0 and who not in self._goodbyes:
            self._has_result = self._has_result or _is_server(who)
            self.cancel()
        elif who in self._leaving:
            self._left(who, pid, code)
        elif code != 0:
            self._lost(who, pid, self._why(who, code))
        if not self._pids and not self._waiting and (self._paused is None or self._is_ending):
            self._orders.append({"op": "end"})
            if self.server_restarts is not None and self._is_ending and not self._has_result:
                what = "every server was lost before the final parameters were saved"
                hint = "run `paceline train --resume RUN`: it goes on from the newest checkpoint"
                ledger.error(Failure(who, what, hint, is_consequence=False))

    def slow(self, who: str, reason: str) -> None:
        """The others found that it holds them up, and that this will not pass."""
        is_there = who in self._pids and who not in self._leaving
        if self.elastic.on_slow is OnSlow.REPLACE and is_there and not self._is_ending:
            self._leaving[who] = f"it was slow: {reason}"
            self._orders.append(_order("leave", who))
            self.say(f"{who} is asked to leave, and will be replaced: {reason}")

    def cancel(self) -> None:
        self._is_ending = True
        self._waiting.clear()

    def stopping(self) -> None:
        """The run was asked to stop; may be called from a signal handler."""
        self._is_stopping = True
        self.desk.stopping()

    def wait_s(self) -> float | None:
        if not self._waiting:
            return POLL_S
        return max(0.0, min(POLL_S, min(self._waiting.values()) - monotonic_s()))

    def orders(self) -> list[Message]:
        for text in self.desk.news():
            self.say(text)
        if self.desk.is_alone() and not self._is_alone:
            self._is_alone = True
            self.registry.give_up()
            self._orders.append({"op": "alone"})
        for wish in self.desk.wishes():
            self._take(wish)
        self._end_the_frozen()
        now_s = monotonic_s()
        for who in [who for who, at_s in self._waiting.items() if at_s <= now_s]:
            del self._waiting[who]
            if _is_server(who):
                self._orders.append({"op": "fork_server", "who": who})
            else:
                self._orders.append(_order("fork", who))
        if self._paused is not None and self._is_stopping and not (self._pids or self._is_ending):
            self._ledger.error(self._paused)  # there is nobody left who could stop in good order
            self._paused = None
            self._orders.append({"op": "end"})
        orders, self._orders = self._orders, []
        return orders

    def _end_the_frozen(self) -> None:
        """What was given up is ended after a grace period: it neither keeps its name nor holds up the end."""
        given_up = {key for key in self.desk.given_up().items() if self._pids.get(key[0]) == key[1] > 0}
        if self._is_alone and self._has_result:
            # A server that is no backup yet learns from the coordinator that all is done.
            given_up |= {(who, pid) for who, pid in self._pids.items() if _is_server(who) and pid > 0}
        self._frozen = {key: patience for key, patience in self._frozen.items() if key in given_up}
        for who, pid in sorted(given_up - self._ended):
            limit_s = min(self.timeout_s, FROZEN_AT_END_S) if self._is_ending else self.timeout_s
            patience = self._frozen.setdefault((who, pid), ActiveTimeout(limit_s))
            if self._is_ending:
                patience.at_most(limit_s)
            if not patience.next_s():
                self._ended.add((who, pid))
                what = f"it gave no sign of life and did not come back within {limit_s:g} s"
                self._errors.setdefault(who, (what, "see its log", ""))
                self._orders.append({"op": "reap", "who": who, "pid": pid})
                self.say(f"{who} (process {pid}) is ended: {what}")

    def _take(self, wish: OperatorRequest) -> None:
        here = {*self._pids, *self._waiting} - set(self._leaving)
        elastic = self.elastic
        crew = Workforce(here, set(self._leaving), elastic.min_workers, elastic.max_workers, self.shards)
        if self._is_ending:
            given: OperatorResponse = Refused(wish.number, "it is ending")
        elif self.server_restarts is not None:
            saves = "saves by --checkpoint-every"
            what = saves if wish.kind == "checkpoint" else "keeps the workers that it began with"
            given = Refused(wish.number, f"a run with parameter servers {what}")
        else:
            given = answer_request(wish, crew)
        if isinstance(given, Granted) and given.is_saving:
            self._orders.append({"op": "save"})
        elif isinstance(given, Granted):
            self._resize(given, len(here) + len(given.start))
        self.say(given.reason if isinstance(given, Granted) else f"not done: {given.reason}")
        self.desk.answer(given)

    def _resize(self, given: Granted, after: int) -> None:
        for who in given.leave:
            if self._waiting.pop(who, None) is None:
                self._leaving[who] = None
                self._orders.append(_order("leave", who))
        for who in given.start:
            self.restarts.forgive(who)  # somebody wants it, whatever was before
            self._waiting[who] = monotonic_s()
        if self._paused is not None and given.start and after >= self.elastic.min_workers:
            self._paused = None
            self.restarts.renew()
            self._orders.append({"op": "pause", "is_paused": False})
            self.say(f"the run goes on: {after} workers are enough, and replacements are counted anew")

    def _left(self, who: str, pid: int, code: int) -> None:
        why = self._leaving.pop(who)
        self._goodbyes.discard(who)
        if code != 0:  # it did not get as far as saying goodbye
            self.registry.lost(who, pid, self._why(who, code))
        if why is None:
            self.say(f"{who} left the run")
        else:
            self._decide(who, why, "see its log")

    def _why(self, who: str, code: int) -> str:
        what, *_ = self._errors.get(who, ("",))
        return what or (f"killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")

    def _lost(self, who: str, pid: int, why: str) -> None:
        _, hint, code = self._errors.pop(who, ("", "", ""))
        self.registry.lost(who, pid, why)
        self._decide(who, why, hint or "see its log", code)

    def _decide(self, who: str, why: str, hint: str, code: str = "") -> None:
        if self._is_ending or self._paused is not None:
            state = "ending" if self._is_ending else "paused"
            self.say(f"{who} was lost ({why}) while the run was {state}")
            return
        if self._is_alone:  # a replacement could not join
            self._ledger.error(Failure(who, why, hint, is_consequence=True, code=code))
            return
        if who in self._hopeless:
            self.say(f"{who} ended ({why}); a replacement would meet the same, so the run ends")
            self._ledger.error(Failure(who, why, hint, is_consequence=False, code=code))
            self.cancel()
            self._orders.append({"op": "kill"})
            return
        restarts = self.restarts
        if _is_server(who):
            assert self.server_restarts is not None, "a run with servers says how they are replaced"
            restarts = self.server_restarts
        # 0: on its way, and perhaps without room.
        living = sum(
            pid > 0 and _replacement_group(other) == _replacement_group(who)
            for other, pid in self._pids.items()
        )
        decision = restarts.lost(who, why, monotonic_s(), living=living, dice=self.dice.random())
        match decision:
            case Replace(_, at_s, reason):
                self._waiting[who] = at_s
                self.say(reason)
            case LeaveOut(_, reason):
                self.say(reason)
            case GiveUp(reason):
                failure = Failure(who, f"{why}; {reason}", hint, is_consequence=False, code=code)
                self._give_up(failure, reason)

    def _give_up(self, failure: Failure, reason: str) -> None:
        self._waiting.clear()
        if self.elastic.on_give_up is OnGiveUp.FAIL:
            self.say(reason)
            self._ledger.error(failure)
            self._orders.append({"op": "kill"})
            return
        self._paused = failure
        first = min((who for who, pid in self._pids.items() if pid > 0), key=_index, default=None)
        saver = None if first is None else _index(first)
        self._orders.append({"op": "pause", "is_paused": True, "saver": saver})
        saved = f"{first} saves what it has" if first is not None else "nobody is left who could save"
        self.say(f"paused: {reason}. {self.restarts.in_words()}. {saved}")
        self.say(
            "to go on: `paceline workers add RUN`; to end: Ctrl-C, and `paceline train --resume RUN` later"
        )


def _replacement_group(who: str) -> str:
    """Who can stand in for whom: all workers; the two servers."""
    return who.rpartition("-")[0]


def _is_server(who: str) -> bool:
    return who.startswith("server-")


def _order(op: str, who: str) -> Message:
    return {"op": op, "index": _index(who)}


def _index(who: str) -> int:
    return int(who.removeprefix("worker-"))
