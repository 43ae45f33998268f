"""What happens to the workers of an elastic run? Losses are told to the coordinator, and replaced by rule.

The launcher sees the end of a process long before a lease runs out, so it says
so at once. Whether and when a lost worker is replaced is decided in restarts.py.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.clock import monotonic_s
from paceline.errors import ExitCode
from paceline.launchers.restarts import GiveUp, LeaveOut, Replace, Restarts
from paceline.launchers.supervise import Failure, Ledger
from paceline.plan.codec import Json

Message = dict[str, Json]
Say = Callable[[str], None]


class Registry(Protocol):
    """What knows the members of the run."""

    def lost(self, who: str, pid: int, reason: str) -> None:
        """This process is certainly gone."""
        ...


@dataclass(slots=True)
class ElasticSupervisor:
    coordinator: Message
    registry: Registry
    restarts: Restarts
    say: Say  # one line for whoever watches, and for the event log
    server_restarts: Restarts | None = None  # the patience with servers, if the run has any
    dice: random.Random = field(default_factory=random.Random)
    _pids: dict[str, int] = field(default_factory=dict)  # of those who live
    _waiting: dict[str, float] = field(default_factory=dict)  # who is replaced, and when
    _errors: dict[str, tuple[str, str]] = field(default_factory=dict)
    _hopeless: set[str] = field(default_factory=set)  # whose error a replacement would meet again
    _orders: list[Message] = field(default_factory=list)
    _is_ending: bool = False  # somebody has finished: nobody is replaced any more
    _has_result: bool = False  # a server has finished

    def started(self, who: str, pid: int) -> None:
        self._pids[who] = pid

    def failed(self, who: str, what: str, hint: str, *, is_hopeless: bool = False) -> None:
        self._errors[who] = (what, hint)
        if is_hopeless:
            self._hopeless.add(who)

    def exited(self, who: str, code: int, ledger: Ledger) -> None:
        pid = self._pids.pop(who)
        if code == 0:
            self._has_result = self._has_result or _is_server(who)
            self.cancel()
        else:
            self._lost(who, pid, code, ledger)
        if not self._pids and not self._waiting:
            self._orders.append({"op": "end"})
            if self.server_restarts is not None and self._is_ending and not self._has_result:
                what = "every server was lost before the final parameters were saved"
                hint = "run `paceline train --resume RUN`: it goes on from the newest checkpoint"
                ledger.error(Failure(who, what, hint, is_consequence=False))

    def cancel(self) -> None:
        self._is_ending = True
        self._waiting.clear()

    def wait_s(self) -> float | None:
        if not self._waiting:
            return None
        return max(0.0, min(self._waiting.values()) - monotonic_s())

    def orders(self) -> list[Message]:
        now_s = monotonic_s()
        for who in [who for who, at_s in self._waiting.items() if at_s <= now_s]:
            del self._waiting[who]
            if _is_server(who):
                self._orders.append({"op": "fork_server", "who": who})
            else:
                self._orders.append({"op": "fork", "index": int(who.removeprefix("worker-"))})
        orders, self._orders = self._orders, []
        return orders

    def _lost(self, who: str, pid: int, code: int, ledger: Ledger) -> None:
        what, hint = self._errors.pop(who, ("", ""))
        why = what or (f"killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")
        self.registry.lost(who, pid, why)
        if self._is_ending:
            self.say(f"{who} was lost ({why}) while the run was ending")
            return
        if who in self._hopeless:
            self.say(f"{who} ended ({why}); a replacement would meet the same, so the run ends")
            ledger.error(Failure(who, why, hint, False, ExitCode.TRAINING_FAILED))
            self.cancel()
            self._orders.append({"op": "kill"})
            return
        restarts = self.restarts
        if _is_server(who):
            assert self.server_restarts is not None, "a run with servers says how they are replaced"
            restarts = self.server_restarts
        living = sum(_is_server(other) == _is_server(who) for other in self._pids)
        decision = restarts.lost(who, why, monotonic_s(), living=living, dice=self.dice.random())
        match decision:
            case Replace(_, at_s, reason):
                self._waiting[who] = at_s
                self.say(reason)
            case LeaveOut(_, reason):
                self.say(reason)
            case GiveUp(reason):
                self.say(reason)
                failure = Failure(
                    who, f"{why}; {reason}", hint or "see its log", False, ExitCode.TRAINING_FAILED
                )
                ledger.error(failure)
                self._waiting.clear()
                self._orders.append({"op": "kill"})


def _is_server(who: str) -> bool:
    return who.startswith("server-")
