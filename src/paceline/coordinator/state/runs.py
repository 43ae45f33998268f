"""How does a run begin, advance and end? An ended run stays as it is."""

import re

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import find, generations, members, refuse, servers
from paceline.coordinator.state.model import ENDED, RunRecord, keep_newest
from paceline.coordinator.state.turn import Turn

MOST_OPEN = 10_000
MOST_ENDED = 1_000
_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,62}")


def create(turn: Turn, said: pb.CreateRun) -> pb.Run | pb.Refusal:
    refusal = _why_not(turn, said)
    if refusal is not None:
        return refusal
    run = pb.Run(
        run=said.run,
        phase=pb.RUN_WAITING,
        plan=said.plan,
        min_workers=said.min_workers,
        max_workers=said.max_workers,
        samples=said.samples,
        launcher=said.launcher,
        external_id=said.external_id,
        want_workers=said.want_workers,
        created_ms=turn.now_ms,
    )
    turn.state.runs[said.run] = RunRecord(run)
    turn.changed(run)
    return run


def end(turn: Turn, said: pb.EndRun) -> pb.Run | pb.Refusal:
    record = find.open_run(turn.state, said.run)
    if isinstance(record, pb.Refusal):
        return record
    if said.phase not in ENDED:
        return refuse.invalid(
            f"run {said.run!r} cannot end in phase {said.phase}", "end it as finished, failed or stopped"
        )
    generations.end_newest(turn, record, "the run ended")
    for worker in list(record.workers.values()):
        members.retire(turn, record, worker, pb.WORKER_LEFT, "the run ended")
    servers.vacate(turn, record)
    record.run.phase = said.phase
    record.run.reason = said.reason
    record.run.ended_ms = turn.now_ms
    turn.changed(record.run)
    turn.state.ended_runs[said.run] = turn.state.runs.pop(said.run)
    for forgotten in keep_newest(turn.state.ended_runs, MOST_ENDED):
        _forget(turn, forgotten.run)
    return record.run


def commit_step(turn: Turn, said: pb.CommitStep) -> pb.Run | pb.Refusal:
    record = find.current(turn.state, said.run, said.generation)
    if isinstance(record, pb.Refusal):
        return record
    run = record.run
    lowest = max(run.committed_step, record.generations[said.generation].step)
    if said.step < lowest:
        return refuse.not_now(
            f"step {said.step} of run {said.run!r} is before step {lowest}",
            "steps are committed forward only",
        )
    if said.step > run.committed_step:  # otherwise another worker said so before
        run.committed_step = said.step
        turn.changed(run)
    return run


def _why_not(turn: Turn, said: pb.CreateRun) -> pb.Refusal | None:
    if not _NAME.fullmatch(said.run):
        return refuse.invalid(
            f"{said.run!r} is no name for a run",
            "use 1 to 63 small letters, digits or . _ -, a letter or digit first",
        )
    if said.run in turn.state.runs or said.run in turn.state.ended_runs:
        return refuse.exists(
            f"there is already a run {said.run!r}", "choose another name, ended runs keep theirs"
        )
    if said.min_workers < 1:
        return refuse.invalid(
            f"run {said.run!r} needs {said.min_workers} workers", "set min_workers to 1 or more"
        )
    if said.max_workers and said.max_workers < said.min_workers:
        return refuse.invalid(
            f"run {said.run!r} takes {said.max_workers} workers at most and needs {said.min_workers}",
            "set max_workers to 0 (no limit) or to min_workers or more",
        )
    if len(turn.state.runs) >= MOST_OPEN:
        return refuse.not_now(f"{MOST_OPEN} runs have not ended", "end those that are over")
    return None


def _forget(turn: Turn, run: pb.Run) -> None:
    state = turn.state
    state.forgotten_generation = max(state.forgotten_generation, run.generation)
    for number in [number for number, action in state.actions.items() if action.run == run.run]:
        del state.actions[number]
