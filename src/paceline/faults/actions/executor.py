"""Action executor: requested, accepted, applied, effect seen; each phase is written to the run's log.

`effect_seen` is written only when the run's own log, or the kernel, shows the effect. With a coordinator the
action is recorded there as well.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.clock import SystemClock, monotonic_s
from paceline.core.errors import PacelineError
from paceline.events.log import EventLog
from paceline.faults.actions import coordinator_record, partition_healer, sigstop
from paceline.faults.actions.partition import NamedLock, NetworkPartition
from paceline.faults.actions.request import (
    FAULTS,
    TIMED_ACTIONS,
    ActionKind,
    ActionRequest,
    PartitionGroup,
    Phase,
    Step,
    parse_group,
    refusal,
)
from paceline.faults.actions.run_state import RunState, process_state
from paceline.plan.codec import read
from paceline.plan.plan import Plan

STEPS_JUDGED = 20  # that a slowed worker has made since: some of them fall between two stops


def observed_effect(wanted: ActionRequest, plan: Plan, look: RunState, since_ns: int, generation: int) -> str:
    """In words; empty: nothing yet. `generation` was the newest before."""
    match wanted.deed:
        case ActionKind.KILL:
            return _kill_effect(wanted, plan, look, since_ns, generation)
        case ActionKind.SLOW:
            return _slow_effect(wanted, look, since_ns)
        case ActionKind.PAUSE:
            is_stopped = process_state(look.pids.get(wanted.worker, 0)) == "T"
            return f"the kernel has stopped {wanted.worker}" if is_stopped else ""
        case ActionKind.RESUME:
            state = process_state(look.pids.get(wanted.worker, 0))
            return f"{wanted.worker} runs" if state and state != "T" else ""
        case ActionKind.CHECKPOINT:
            saved = look.since("checkpoint", since_ns)
            return f"step {saved[-1].fields['step']} is on disk" if saved else ""
        case _:
            ended = look.since("run_finished", since_ns)
            return f"the run is over: {ended[-1].fields['outcome']}" if ended else ""


def _slow_effect(wanted: ActionRequest, look: RunState, since_ns: int) -> str:
    """Steps must take clearly longer: at least half of the slowdown that was asked for."""
    before_s = look.mean_step_s(before_ns=since_ns)
    now_s = look.mean_step_s(since_ns=since_ns, least=STEPS_JUDGED)
    if before_s is None or now_s is None or before_s <= 0:
        return ""
    ratio = now_s / before_s
    if ratio < 1 + (wanted.factor - 1) / 2:
        return ""
    return f"steps of {wanted.worker} take {ratio:.1f} times as long: {now_s:.3g} s, {before_s:.3g} s before"


def _kill_effect(wanted: ActionRequest, plan: Plan, look: RunState, since_ns: int, generation: int) -> str:
    if ended := look.since("run_finished", since_ns):
        return f"the run is over: {ended[-1].fields['outcome']}"
    if wanted.worker.startswith("server-"):
        return _replacement_effect(wanted, look, since_ns)
    for event in look.since("generation_entered", since_ns):
        number = int(str(event.fields["number"]))
        if number > generation:
            took_s = (event.at_ns - since_ns) / 1e9
            workers = str(event.fields["workers"]).split(",")
            return f"generation {number} with {len(workers)} workers, after {took_s:.2f} s"
    return _replacement_effect(wanted, look, since_ns) if plan.elastic is not None else ""


def _replacement_effect(wanted: ActionRequest, look: RunState, since_ns: int) -> str:
    """Where there are no generations: behind parameter servers."""
    found = [event for event in look.since("worker_started", since_ns) if event.who == wanted.worker]
    has_generations = any(event.kind == "generation_entered" for event in look.events)
    if not found or has_generations:
        return ""
    return f"{wanted.worker} was replaced after {(found[0].at_ns - since_ns) / 1e9:.2f} s"


EFFECT_TIMEOUT_S = 60.0
POLL_S = 0.05
StepCallback = Callable[[Step], None]


class _RefusedError(Exception):
    """With the reason."""


@dataclass(slots=True)
class ActionExecutor:
    """One wish, while it is carried out."""

    run_dir: Path
    wanted: ActionRequest
    tell: StepCallback
    within_s: float = EFFECT_TIMEOUT_S
    # Processes that hold a worker, as long as somebody keeps their other end open.
    holders: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    plan: Plan = field(init=False)
    look: RunState = field(init=False)
    applied_ns: int = 0
    _apart: NetworkPartition | None = None  # of a partition
    _began_s: float = field(default_factory=monotonic_s)

    def run(self) -> Step:
        """Until its effect is seen, or it is known that it will not be; the last step."""
        self.plan = read(self.run_dir / "plan.json")
        steps_of = self.wanted.worker if self.wanted.deed is ActionKind.SLOW else ""
        self.look = RunState(self.run_dir, steps_of=steps_of)
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
            if self.wanted.deed in (ActionKind.PARTITION, ActionKind.HEAL):
                try:
                    self._apart = stack.enter_context(NetworkPartition.of(self.run_dir))
                except PacelineError as error:
                    return self._say(log, Phase.REFUSED, f"{error.what} ({error.hint})")
            if why_not := self._why_not_apart():
                return self._say(log, Phase.REFUSED, why_not)
            return self._carry_out(log)

    def _carry_out(self, log: EventLog) -> Step:
        note = coordinator_record.open_record(self.run_dir, self.wanted, self.plan)
        try:
            self._say(log, Phase.ACCEPTED, note.in_words)
            note.report(Phase.ACCEPTED, "")
            self.applied_ns = SystemClock().now_ns()
            before = self.look.generation()
            self._say(log, Phase.APPLIED, said := self._apply(note))
            self._tell_of_fault(log)
            if self.wanted.deed is ActionKind.PARTITION:  # until it waits, the nodes' own clocks do
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

    def _apply(self, note: coordinator_record.ActionRecord) -> str:
        wanted = self.wanted
        who = self.wanted.worker
        match wanted.deed:
            case ActionKind.KILL:
                return self._signal(who, signal.SIGKILL, "SIGKILL")
            case ActionKind.PAUSE:
                self._hold(who, share=1.0)
                return f"{who} is stopped for up to {wanted.for_s:g} s"
            case ActionKind.SLOW:
                share = 1 - 1 / wanted.factor
                self._hold(who, share=share)
                return f"{who} is stopped {share:.0%} of the time, for {wanted.for_s:g} s"
            case ActionKind.RESUME:
                with self._turn_at(who):
                    was_held = sigstop.end(self.run_dir, who)
                return f"{who} was {'let go' if was_held else 'held by nobody'}" + (
                    "" if was_held else "; " + self._signal(who, signal.SIGCONT, "SIGCONT")
                )
            case ActionKind.PARTITION:
                return self._cut()
            case ActionKind.HEAL:
                return self._heal()
            case ActionKind.CHECKPOINT:
                return note.await_accepted(self.within_s)
            case _:
                return self._stop()

    def _hold(self, who: str, *, share: float) -> None:
        wanted = self.wanted
        with self._turn_at(who):
            self.holders.append(
                sigstop.begin(
                    self.run_dir,
                    who,
                    self._pid(who),
                    share=share,
                    for_s=wanted.for_s,
                    wish=wanted.id,
                    cycle_s=sigstop.cycle_for(self.look.mean_step_s()),
                )
            )

    @contextmanager
    def _turn_at(self, who: str) -> Iterator[None]:
        """Two who begin to hold one worker at once would leave one that nobody finds."""
        turn = NamedLock(f"{self.run_dir.resolve()} {who}")
        if not turn.take():
            raise _RefusedError(f"somebody else is just stopping {who}, or letting it go; ask again")
        try:
            yield
        finally:
            turn.end()

    def _sides(self) -> PartitionGroup:
        sides = parse_group(self.wanted.worker)
        assert sides is not None, "it was checked"
        return sides

    def _why_not_apart(self) -> str:
        """Whoever may go on has the turn: nobody else cuts or mends until it is done."""
        if self._apart is None:
            return ""
        if not self._apart.turn.take():
            return "somebody else is cutting or mending there; ask again"
        if self.wanted.deed is ActionKind.HEAL:
            return ""
        return self._apart.why_not(self._sides(), self.look.pids, is_forced=self.wanted.is_forced)

    def _cut(self) -> str:
        assert self._apart is not None, "it was opened before"
        wanted = self.wanted
        sides = self._sides()
        pids = {worker: self._pid(worker) for worker in sides.workers}
        partition_healer.end(self.run_dir)  # of a cut that is over; later it would mend this one
        said = self._apart.cut(sides, pids, wanted.for_s)
        self._apart.turn.end()
        return said

    def _await_end(self) -> None:
        wanted = self.wanted
        self.holders.append(partition_healer.begin(self.run_dir, wanted.for_s, wanted.id, wanted.worker))

    def _heal(self) -> str:
        assert self._apart is not None, "it was opened before"
        was_held = partition_healer.end(self.run_dir)
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
            SystemClock().sleep(POLL_S)
        return None

    def _seen(self, generation: int) -> str:
        apart = self._apart
        if apart is None:
            return observed_effect(self.wanted, self.plan, self.look, self.applied_ns, generation)
        if self.wanted.deed is ActionKind.HEAL:
            return "nobody is cut off" if apart.is_whole() else ""
        return apart.seen(self._sides(), self.look, self.applied_ns, generation)

    def _tell_of_fault(self, log: EventLog) -> None:
        """Alerts that come of it are no news."""
        wanted = self.wanted
        if wanted.deed in FAULTS:
            holds = wanted.deed in TIMED_ACTIONS
            until_ns = self.applied_ns + round(wanted.for_s * 1e9) if holds else None
            for target in wanted.worker.split(","):  # of a partition there may be several
                said = {"fault": wanted.deed.value, "target": target, "by": wanted.by, "until_ns": until_ns}
                log.write("fault_injected", **said)

    def _say(self, log: EventLog, phase: Phase, note: str) -> Step:
        wanted = self.wanted
        step = Step(phase, note, round(monotonic_s() - self._began_s, 3))
        log.write(
            "action",
            id=wanted.id,
            action=wanted.deed.value,
            target=wanted.worker,
            phase=phase.value,
            note=note,
            by=wanted.by,
            source=wanted.source,
            **({"for_s": wanted.for_s} if wanted.deed in TIMED_ACTIONS else {}),
            **({"factor": wanted.factor} if wanted.deed is ActionKind.SLOW else {}),
        )
        self.tell(step)
        return step
