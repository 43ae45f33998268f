"""How is a wish carried out? Requested, accepted, applied, its effect seen; each is in the run's log.

Nothing is claimed before it is so: `effect_seen` is said when the run's own log, or the
kernel, shows it. What was asked of a run with a coordinator is noted there as well.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.app.actions import effects, hold, noted
from paceline.app.actions.look import Look, command_of
from paceline.app.actions.wanted import FAULTS, Deed, Phase, Step, Wanted, refusal
from paceline.clock import SystemClock, monotonic_s
from paceline.errors import PacelineError
from paceline.events.log import EventLog
from paceline.plan.codec import read
from paceline.plan.plan import Plan

WITHIN_S = 60.0
LOOK_S = 0.05
Tell = Callable[[Step], None]


class _RefusedError(Exception):
    """With the reason."""


@dataclass(slots=True)
class Act:
    """One wish, while it is carried out."""

    run_dir: Path
    wanted: Wanted
    tell: Tell
    within_s: float = WITHIN_S
    # Processes that hold a worker, as long as somebody keeps their other end open.
    holders: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    plan: Plan = field(init=False)
    look: Look = field(init=False)
    applied_ns: int = 0
    _began_s: float = field(default_factory=monotonic_s)

    def run(self) -> Step:
        """Until its effect is seen, or it is known that it will not be; the last step."""
        self.plan = read(self.run_dir / "plan.json")
        self.look = Look(self.run_dir)
        self.look.read()
        log = EventLog(self.run_dir / "events.jsonl", who="operator", clock=SystemClock())
        try:
            return self._run(log)
        finally:
            log.close()

    def _run(self, log: EventLog) -> Step:
        self._say(log, Phase.REQUESTED, f"by {self.wanted.by}, through {self.wanted.source}")
        why_not = refusal(self.wanted, self.plan, self.look.pids, is_over=self.look.is_over)
        if why_not:
            return self._say(log, Phase.REFUSED, why_not)
        note = noted.open_note(self.run_dir, self.wanted, self.plan)
        try:
            self._say(log, Phase.ACCEPTED, note.in_words)
            note.report(Phase.ACCEPTED, "")
            self.applied_ns = SystemClock().now_ns()
            before = self.look.generation()
            self._say(log, Phase.APPLIED, said := self._apply(note))
            self._tell_of_fault(log)
            note.report(Phase.APPLIED, said)
            seen = self._await_effect(before)
            last = Phase.FAILED if seen is None else Phase.EFFECT_SEEN
            words = seen or f"no effect was seen within {self.within_s:g} s"
            note.report(last, words)
            return self._say(log, last, words)
        except _RefusedError as error:
            note.report(Phase.REFUSED, str(error))
            return self._say(log, Phase.REFUSED, str(error))
        except PacelineError as error:
            note.report(Phase.FAILED, error.what)
            return self._say(log, Phase.FAILED, f"{error.what} ({error.hint})")
        finally:
            note.close()

    def _apply(self, note: noted.Note) -> str:
        wanted, who = self.wanted, self.wanted.worker
        match wanted.deed:
            case Deed.KILL:
                return self._signal(who, signal.SIGKILL, "SIGKILL")
            case Deed.PAUSE:
                self._hold(who, share=1.0)
                return f"{who} is stopped for up to {wanted.for_s:g} s"
            case Deed.SLOW:
                share = 1 - 1 / wanted.factor
                self._hold(who, share=share)
                return f"{who} is stopped {share:.0%} of the time, for {wanted.for_s:g} s"
            case Deed.RESUME:
                was_held = hold.end(self.run_dir, who)
                return f"{who} was {'let go' if was_held else 'held by nobody'}" + (
                    "" if was_held else "; " + self._signal(who, signal.SIGCONT, "SIGCONT")
                )
            case Deed.CHECKPOINT:
                return note.await_accepted(self.within_s)
            case _:
                return self._stop()

    def _hold(self, who: str, *, share: float) -> None:
        wanted = self.wanted
        self.holders.append(
            hold.begin(self.run_dir, who, self._pid(who), share=share, for_s=wanted.for_s, wish=wanted.id)
        )

    def _stop(self) -> str:
        launcher = self.look.launcher
        if launcher is None or "paceline" not in command_of(launcher):
            raise _RefusedError("the command that began the run is not on this machine, or has ended")
        os.kill(launcher, signal.SIGINT)
        return f"process {launcher}, which began the run, was asked to stop as by Ctrl-C"

    def _signal(self, who: str, number: signal.Signals, name: str) -> str:
        pid = self._pid(who)
        os.kill(pid, number)
        return f"{name} was sent to {who}, process {pid}"

    def _pid(self, who: str) -> int:
        pid = self.look.pids[who]
        if "paceline" not in command_of(pid):
            raise _RefusedError(f"process {pid} of {who} is gone, and no other has taken its place yet")
        return pid

    def _await_effect(self, generation: int) -> str | None:
        deadline_s = monotonic_s() + self.within_s
        while monotonic_s() < deadline_s:
            self.look.read()
            seen = effects.seen(self.wanted, self.plan, self.look, self.applied_ns, generation)
            if seen:
                return seen
            SystemClock().sleep(LOOK_S)
        return None

    def _tell_of_fault(self, log: EventLog) -> None:
        """Alerts that come of it are no news."""
        wanted = self.wanted
        if wanted.deed in FAULTS:
            holds = wanted.deed in (Deed.PAUSE, Deed.SLOW)
            until_ns = self.applied_ns + round(wanted.for_s * 1e9) if holds else None
            log.write(
                "fault_injected",
                fault=wanted.deed.value,
                target=wanted.worker,
                by=wanted.by,
                until_ns=until_ns,
            )

    def _say(self, log: EventLog, phase: Phase, note: str) -> Step:
        wanted, step = self.wanted, Step(phase, note, round(monotonic_s() - self._began_s, 3))
        log.write(
            "action",
            id=wanted.id,
            action=wanted.deed.value,
            target=wanted.worker,
            phase=phase.value,
            note=note,
            by=wanted.by,
            source=wanted.source,
            **({"for_s": wanted.for_s} if wanted.deed in (Deed.PAUSE, Deed.SLOW) else {}),
            **({"factor": wanted.factor} if wanted.deed is Deed.SLOW else {}),
        )
        self.tell(step)
        return step
