"""How is a wish carried out? Requested, accepted, applied, its effect seen; each is in the run's log.

Nothing is claimed before it is so: `effect_seen` is said when the run's own log, or the
kernel, shows it. What was asked of a run with a coordinator is noted there as well.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.app.actions import effects, hold, mender, noted
from paceline.app.actions.apart import Apart
from paceline.app.actions.look import Look
from paceline.app.actions.sides import Sides, sides_in
from paceline.app.actions.turn import Turn
from paceline.app.actions.wanted import FAULTS, LASTING, Deed, Phase, Step, Wanted, refusal
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
    _apart: Apart | None = None  # of a partition
    _began_s: float = field(default_factory=monotonic_s)

    def run(self) -> Step:
        """Until its effect is seen, or it is known that it will not be; the last step."""
        self.plan = read(self.run_dir / "plan.json")
        steps_of = self.wanted.worker if self.wanted.deed is Deed.SLOW else ""
        self.look = Look(self.run_dir, steps_of=steps_of)
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
        with ExitStack() as stack:
            if self.wanted.deed in (Deed.PARTITION, Deed.HEAL):
                try:
                    self._apart = stack.enter_context(Apart.of(self.run_dir))
                except PacelineError as error:
                    return self._say(log, Phase.REFUSED, f"{error.what} ({error.hint})")
            if why_not := self._why_not_apart():
                return self._say(log, Phase.REFUSED, why_not)
            return self._carry_out(log)

    def _carry_out(self, log: EventLog) -> Step:
        note = noted.open_note(self.run_dir, self.wanted, self.plan)
        try:
            self._say(log, Phase.ACCEPTED, note.in_words)
            note.report(Phase.ACCEPTED, "")
            self.applied_ns = SystemClock().now_ns()
            before = self.look.generation()
            self._say(log, Phase.APPLIED, said := self._apply(note))
            self._tell_of_fault(log)
            if self.wanted.deed is Deed.PARTITION:  # until it waits, the nodes' own clocks do
                self._await_end()
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
                with self._turn_at(who):
                    was_held = hold.end(self.run_dir, who)
                return f"{who} was {'let go' if was_held else 'held by nobody'}" + (
                    "" if was_held else "; " + self._signal(who, signal.SIGCONT, "SIGCONT")
                )
            case Deed.PARTITION:
                return self._cut()
            case Deed.HEAL:
                return self._heal()
            case Deed.CHECKPOINT:
                return note.await_accepted(self.within_s)
            case _:
                return self._stop()

    def _hold(self, who: str, *, share: float) -> None:
        wanted = self.wanted
        with self._turn_at(who):
            self.holders.append(
                hold.begin(
                    self.run_dir,
                    who,
                    self._pid(who),
                    share=share,
                    for_s=wanted.for_s,
                    wish=wanted.id,
                    cycle_s=hold.cycle_for(self.look.mean_step_s()),
                )
            )

    @contextmanager
    def _turn_at(self, who: str) -> Iterator[None]:
        """Two who begin to hold one worker at once would leave one that nobody finds."""
        turn = Turn(f"{self.run_dir.resolve()} {who}")
        if not turn.take():
            raise _RefusedError(f"somebody else is just stopping {who}, or letting it go; ask again")
        try:
            yield
        finally:
            turn.end()

    def _sides(self) -> Sides:
        sides = sides_in(self.wanted.worker)
        assert sides is not None, "it was checked"
        return sides

    def _why_not_apart(self) -> str:
        """Whoever may go on has the turn: nobody else cuts or mends until it is done."""
        if self._apart is None:
            return ""
        if not self._apart.turn.take():
            return "somebody else is cutting or mending there; ask again"
        if self.wanted.deed is Deed.HEAL:
            return ""
        return self._apart.why_not(self._sides(), self.look.pids, is_forced=self.wanted.is_forced)

    def _cut(self) -> str:
        assert self._apart is not None, "it was opened before"
        wanted, sides = self.wanted, self._sides()
        pids = {worker: self._pid(worker) for worker in sides.workers}
        mender.end(self.run_dir)  # of a cut that is over; later it would mend this one
        said = self._apart.cut(sides, pids, wanted.for_s)
        self._apart.turn.end()
        return said

    def _await_end(self) -> None:
        wanted = self.wanted
        self.holders.append(mender.begin(self.run_dir, wanted.for_s, wanted.id, wanted.worker))

    def _heal(self) -> str:
        assert self._apart is not None, "it was opened before"
        was_held = mender.end(self.run_dir)
        missed = self._apart.mend()
        self._apart.turn.end()
        silent = f"; {', '.join(f'node-{node}' for node in missed)} did not answer" if missed else ""
        return "all hear each other again" + ("" if was_held else "; nobody waited to do it") + silent

    def _stop(self) -> str:
        launcher = self.look.launcher
        if launcher is None or not self.look.is_still(launcher, self.look.launched_ns):
            raise _RefusedError("the command that began the run is not on this machine, or has ended")
        os.kill(launcher, signal.SIGINT)
        return f"process {launcher}, which began the run, was asked to stop as by Ctrl-C"

    def _signal(self, who: str, number: signal.Signals, name: str) -> str:
        pid = self._pid(who)
        os.kill(pid, number)
        return f"{name} was sent to {who}, process {pid}"

    def _pid(self, who: str) -> int:
        pid = self.look.pids[who]
        if not self.look.is_still(pid, self.look.started_ns[who]):
            raise _RefusedError(f"process {pid} of {who} is gone, and no other has taken its place yet")
        return pid

    def _await_effect(self, generation: int) -> str | None:
        deadline_s = monotonic_s() + max(self.within_s, 0.0 if self._apart is None else self.wanted.for_s)
        while monotonic_s() < deadline_s:
            self.look.read()
            seen = self._seen(generation)
            if seen:
                return seen
            SystemClock().sleep(LOOK_S)
        return None

    def _seen(self, generation: int) -> str:
        apart = self._apart
        if apart is None:
            return effects.seen(self.wanted, self.plan, self.look, self.applied_ns, generation)
        if self.wanted.deed is Deed.HEAL:
            return "nobody is cut off" if apart.is_whole() else ""
        return apart.seen(self._sides(), self.look, self.applied_ns, generation)

    def _tell_of_fault(self, log: EventLog) -> None:
        """Alerts that come of it are no news."""
        wanted = self.wanted
        if wanted.deed in FAULTS:
            holds = wanted.deed in LASTING
            until_ns = self.applied_ns + round(wanted.for_s * 1e9) if holds else None
            for target in wanted.worker.split(","):  # of a partition there may be several
                said = {"fault": wanted.deed.value, "target": target, "by": wanted.by, "until_ns": until_ns}
                log.write("fault_injected", **said)

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
            **({"for_s": wanted.for_s} if wanted.deed in LASTING else {}),
            **({"factor": wanted.factor} if wanted.deed is Deed.SLOW else {}),
        )
        self.tell(step)
        return step
