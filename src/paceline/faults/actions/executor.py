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

from paceline.core import environ
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

STEPS_JUDGED = 20  # steps of a slowed worker: some of them fall between two stops


def observed_effect(
    request: ActionRequest, plan: Plan, state: RunState, since_ns: int, generation: int
) -> str:
    """Description of the effect; empty: none yet. `generation` was the newest one before."""
    match request.kind:
        case ActionKind.KILL:
            return _kill_effect(request, plan, state, since_ns, generation)
        case ActionKind.SLOW:
            return _slow_effect(request, state, since_ns)
        case ActionKind.PAUSE:
            is_stopped = process_state(state.pids.get(request.worker, 0)) == "T"
            return f"{request.worker} is stopped (SIGSTOP)" if is_stopped else ""
        case ActionKind.RESUME:
            process = process_state(state.pids.get(request.worker, 0))
            return f"{request.worker} is running" if process and process != "T" else ""
        case ActionKind.CHECKPOINT:
            saved = state.since("checkpoint", since_ns)
            return f"step {saved[-1].fields['step']} is on disk" if saved else ""
        case _:
            ended = state.since("run_finished", since_ns)
            return f"the run ended: {ended[-1].fields['outcome']}" if ended else ""


def _slow_effect(request: ActionRequest, state: RunState, since_ns: int) -> str:
    """Steps must take clearly longer: at least half of the requested slowdown."""
    before_s = state.mean_step_s(before_ns=since_ns)
    now_s = state.mean_step_s(since_ns=since_ns, minimum=STEPS_JUDGED)
    if before_s is None or now_s is None or before_s <= 0:
        return ""
    ratio = now_s / before_s
    if ratio < 1 + (request.factor - 1) / 2:
        return ""
    return f"steps of {request.worker} take {ratio:.1f} times as long: {now_s:.3g} s, {before_s:.3g} s before"


def _kill_effect(request: ActionRequest, plan: Plan, state: RunState, since_ns: int, generation: int) -> str:
    if ended := state.since("run_finished", since_ns):
        return f"the run ended: {ended[-1].fields['outcome']}"
    if request.worker.startswith("server-"):
        return _replacement_effect(request, state, since_ns)
    for event in state.since("generation_entered", since_ns):
        number = int(str(event.fields["number"]))
        if number > generation:
            took_s = (event.at_ns - since_ns) / 1e9
            workers = str(event.fields["workers"]).split(",")
            return f"generation {number} with {len(workers)} workers, after {took_s:.2f} s"
    return _replacement_effect(request, state, since_ns) if plan.elastic is not None else ""


def _replacement_effect(request: ActionRequest, state: RunState, since_ns: int) -> str:
    """For runs without generations, which have parameter servers."""
    starts = [event for event in state.since("worker_started", since_ns) if event.who == request.worker]
    has_generations = any(event.kind == "generation_entered" for event in state.events)
    if not starts or has_generations:
        return ""
    return f"{request.worker} was replaced after {(starts[0].at_ns - since_ns) / 1e9:.2f} s"


EFFECT_TIMEOUT_S = 60.0
POLL_S = 0.05
StepCallback = Callable[[Step], None]


class _RefusedError(Exception):
    """The action is refused; the message is the reason."""


@dataclass(slots=True)
class ActionExecutor:
    """Executes one request."""

    run_dir: Path
    request: ActionRequest
    on_step: StepCallback
    within_s: float = EFFECT_TIMEOUT_S
    # Helper processes that stop a worker; each ends when its stdin closes.
    holders: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    plan: Plan = field(init=False)
    state: RunState = field(init=False)
    applied_ns: int = 0
    _partition: NetworkPartition | None = None  # only for partition and heal
    _began_s: float = field(default_factory=monotonic_s)

    def run(self) -> Step:
        """Wait until the effect is seen or the action failed; returns the last step."""
        self.plan = read(self.run_dir / "plan.json")
        steps_of = self.request.worker if self.request.kind is ActionKind.SLOW else ""
        self.state = RunState(self.run_dir, steps_of=steps_of)
        self.state.read()
        path = None if self._is_copy else self.run_dir / "events.jsonl"
        log = EventLog(path, who="operator", clock=SystemClock())
        try:
            return self._run(log)
        finally:
            log.close()

    @property
    def _is_copy(self) -> bool:
        """Whether the processes in the log may be those of another machine."""
        return self.run_dir.is_relative_to(environ.mirrors_folder())

    def _run(self, log: EventLog) -> Step:
        self._log_phase(log, Phase.REQUESTED, f"by {self.request.by}, from {self.request.source}")
        why_not = refusal(self.request, self.plan, self.state.pids, is_over=self.state.is_over)
        if self._is_copy:
            why_not = "this is the copy of a run from its store: act on the machine of its command"
        if why_not:
            return self._log_phase(log, Phase.REFUSED, why_not)
        with ExitStack() as stack:
            if self.request.kind in (ActionKind.PARTITION, ActionKind.HEAL):
                try:
                    self._partition = stack.enter_context(NetworkPartition.of(self.run_dir))
                except PacelineError as error:
                    return self._log_phase(log, Phase.REFUSED, f"{error.what} ({error.hint})")
            if why_not := self._partition_refusal():
                return self._log_phase(log, Phase.REFUSED, why_not)
            return self._execute(log)

    def _execute(self, log: EventLog) -> Step:
        record = coordinator_record.open_record(self.run_dir, self.request, self.plan)
        try:
            self._log_phase(log, Phase.ACCEPTED, record.text)
            record.report(Phase.ACCEPTED, "")
            self.applied_ns = SystemClock().now_ns()
            before = self.state.generation()
            self._log_phase(log, Phase.APPLIED, text := self._apply(record))
            self._log_fault(log)
            if (
                self.request.kind is ActionKind.PARTITION
            ):  # before it starts, the nodes' own clocks limit the partition
                self._start_healer()
            record.report(Phase.APPLIED, text)
            effect = self._await_effect(before)
            last = Phase.FAILED if effect is None else Phase.EFFECT_SEEN
            text = effect or f"no effect within {self.within_s:g} s"
            record.report(last, text)
            return self._log_phase(log, last, text)
        except _RefusedError as error:
            record.report(Phase.REFUSED, str(error))
            return self._log_phase(log, Phase.REFUSED, str(error))
        except PacelineError as error:
            record.report(Phase.FAILED, error.what)
            return self._log_phase(log, Phase.FAILED, f"{error.what} ({error.hint})")
        finally:
            record.close()

    def _apply(self, record: coordinator_record.ActionRecord) -> str:
        request = self.request
        worker = self.request.worker
        match request.kind:
            case ActionKind.KILL:
                return self._signal(worker, signal.SIGKILL, "SIGKILL")
            case ActionKind.PAUSE:
                self._hold(worker, share=1.0)
                return f"{worker} is stopped for up to {request.for_s:g} s"
            case ActionKind.SLOW:
                share = 1 - 1 / request.factor
                self._hold(worker, share=share)
                return f"{worker} is stopped {share:.0%} of the time, for {request.for_s:g} s"
            case ActionKind.RESUME:
                with self._worker_lock(worker):
                    was_held = sigstop.end(self.run_dir, worker)
                return f"{worker} was {'resumed' if was_held else 'not paused by a command'}" + (
                    "" if was_held else "; " + self._signal(worker, signal.SIGCONT, "SIGCONT")
                )
            case ActionKind.PARTITION:
                return self._start_partition()
            case ActionKind.HEAL:
                return self._heal()
            case ActionKind.CHECKPOINT:
                return record.await_accepted(self.within_s)
            case _:
                return self._stop()

    def _hold(self, worker: str, *, share: float) -> None:
        request = self.request
        with self._worker_lock(worker):
            self.holders.append(
                sigstop.begin(
                    self.run_dir,
                    worker,
                    self._pid(worker),
                    share=share,
                    for_s=request.for_s,
                    action_id=request.id,
                    cycle_s=sigstop.cycle_for(self.state.mean_step_s()),
                )
            )

    @contextmanager
    def _worker_lock(self, worker: str) -> Iterator[None]:
        """Lock of a worker: of two helpers started at once for it, one would be lost."""
        lock = NamedLock(f"{self.run_dir.resolve()} {worker}")
        if not lock.acquire():
            raise _RefusedError(f"another request is pausing or resuming {worker}; retry")
        try:
            yield
        finally:
            lock.release()

    def _group(self) -> PartitionGroup:
        group = parse_group(self.request.worker)
        assert group is not None, "it was checked"
        return group

    def _partition_refusal(self) -> str:
        """The reason to refuse a partition or heal; empty: allowed, and this executor holds the lock."""
        if self._partition is None:
            return ""
        if not self._partition.lock.acquire():
            return "another request is changing the partitions; retry"
        if self.request.kind is ActionKind.HEAL:
            return ""
        return self._partition.why_not(self._group(), self.state.pids, is_forced=self.request.is_forced)

    def _start_partition(self) -> str:
        assert self._partition is not None, "it was opened before"
        request = self.request
        group = self._group()
        pids = {worker: self._pid(worker) for worker in group.workers}
        partition_healer.end(
            self.run_dir
        )  # left over from an earlier partition; it would heal this one too early
        text = self._partition.start(group, pids, request.for_s)
        self._partition.lock.release()
        return text

    def _start_healer(self) -> None:
        request = self.request
        self.holders.append(partition_healer.begin(self.run_dir, request.for_s, request.id, request.worker))

    def _heal(self) -> str:
        assert self._partition is not None, "it was opened before"
        was_held = partition_healer.end(self.run_dir)
        missed = self._partition.heal()
        self._partition.lock.release()
        silent = f"; {', '.join(f'node-{node}' for node in missed)} did not respond" if missed else ""
        return "all partitions are healed" + ("" if was_held else "; no command was holding them") + silent

    def _stop(self) -> str:
        launcher = self.state.launcher
        if launcher is None or not self.state.is_still(launcher, self.state.launched_ns):
            raise _RefusedError("the command that started the run is not on this machine, or has ended")
        os.kill(launcher, signal.SIGINT)
        return f"SIGINT was sent to process {launcher}, which started the run"

    def _signal(self, worker: str, number: signal.Signals, name: str) -> str:
        pid = self._pid(worker)
        os.kill(pid, number)
        return f"{name} was sent to {worker}, process {pid}"

    def _pid(self, worker: str) -> int:
        pid = self.state.pids[worker]
        if not self.state.is_still(pid, self.state.started_ns[worker]):
            raise _RefusedError(f"process {pid} of {worker} has ended, and is not replaced yet")
        return pid

    def _await_effect(self, generation: int) -> str | None:
        deadline_s = monotonic_s() + max(
            self.within_s, 0.0 if self._partition is None else self.request.for_s
        )
        while monotonic_s() < deadline_s:
            self.state.read()
            effect = self._effect(generation)
            if effect:
                return effect
            SystemClock().sleep(POLL_S)
        return None

    def _effect(self, generation: int) -> str:
        partition = self._partition
        if partition is None:
            return observed_effect(self.request, self.plan, self.state, self.applied_ns, generation)
        if self.request.kind is ActionKind.HEAL:
            return "no partition is left" if partition.is_healed() else ""
        return partition.observed_effect(self._group(), self.state, self.applied_ns, generation)

    def _log_fault(self, log: EventLog) -> None:
        """Recorded, so that alerts caused by it can be attributed to it."""
        request = self.request
        if request.kind in FAULTS:
            holds = request.kind in TIMED_ACTIONS
            until_ns = self.applied_ns + round(request.for_s * 1e9) if holds else None
            for target in request.worker.split(","):  # a partition may have several targets
                log.write(
                    "fault_injected",
                    fault=request.kind.value,
                    target=target,
                    by=request.by,
                    until_ns=until_ns,
                )

    def _log_phase(self, log: EventLog, phase: Phase, note: str) -> Step:
        request = self.request
        step = Step(phase, note, round(monotonic_s() - self._began_s, 3))
        log.write(
            "action",
            id=request.id,
            action=request.kind.value,
            target=request.worker,
            phase=phase.value,
            note=note,
            by=request.by,
            source=request.source,
            **({"for_s": request.for_s} if request.kind in TIMED_ACTIONS else {}),
            **({"factor": request.factor} if request.kind is ActionKind.SLOW else {}),
        )
        self.on_step(step)
        return step
