"""Script entry: a participant runs the user's file, and a probe runs it until its second batch.

The file is run as `__main__`, with its own arguments and in the user's folder, like `python script.py`. Its
standard output goes to the participant's log; that of the main worker is also shown by the command.
"""

import io
import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from paceline.core.errors import PacelineError, ScriptError, script_error
from paceline.core.ids import Rank
from paceline.core.user_code import in_one_line, raised_at, user_frames
from paceline.events import custom_metrics
from paceline.plan.codec import Json
from paceline.plan.plan import Dtype, Plan
from paceline.worker.batches import seed_generators
from paceline.worker.context import WorkerContext
from paceline.worker.participant import ParticipantBody
from paceline.worker.reporting import TERMINATING_ERRORS, Report
from paceline.worker.script.facts import ScriptFacts, ScriptFile, file_of
from paceline.worker.script.hosts import ElasticHost, ParticipantHost, ProbeHost, ServerHost
from paceline.worker.script.port import ScriptDoneError, ScriptHost
from paceline.worker.script.run import enter
from paceline.worker.script.session import ScriptSession
from paceline.worker.script.trial import TrialHost
from paceline.worker.self_monitor import with_self_monitor
from paceline.worker.wiring import set_up_torch

Answer = dict[str, Json]


def script_body(plan: Plan, participant: str) -> ParticipantBody:
    """What this participant of a script's run does."""
    if participant.startswith("server-"):
        return partial(_serve, participant)
    body = partial(_work, Rank(int(participant.removeprefix("worker-"))))
    return body if plan.elastic is None else with_self_monitor(participant, body)


def _work(rank: Rank, context: WorkerContext, report: Callable[[Report], None]) -> None:
    set_up_torch(context.plan)
    options = dict(context.plan.task_options)
    kind = ParticipantHost if context.plan.elastic is None else ElasticHost
    ending = _Ending(report)
    host = kind(rank, context, ScriptFacts.read(options), ending.receive)
    sys.stdout = _Shown(sys.stdout, report, is_shown=lambda: host.rank == 0)
    ending.send(run_file(file_of(options), host), context, f"worker-{rank}")


class _Ending:
    """The final report of a worker, sent when its script has ended.

    The step loop ends before the script does, which may evaluate its model then: what it logs after its last
    step is in the report of the main worker, and in the event log.
    """

    def __init__(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._last: list[Report] = []

    def receive(self, facts: Report) -> None:
        if "ev" in facts:  # a note, or an evaluation
            self._report(facts)
        else:
            self._last.append(facts)

    def send(self, session: ScriptSession, context: WorkerContext, participant: str) -> None:
        if custom_metrics.recorded:
            log = context.folder.open_log(context.plan, participant, context.clock)
            log.add_custom(custom_metrics.rows_of_step(session.step, context.clock.now_ns()))
            log.close()
        numbers = {"metrics": session.logged} if session.logged and session.host.rank == 0 else {}
        for facts in self._last:
            self._report({**facts, **numbers})


def _serve(participant: str, context: WorkerContext, report: Callable[[Report], None]) -> None:
    set_up_torch(context.plan)
    options = dict(context.plan.task_options)
    run_file(file_of(options), ServerHost(participant, context, ScriptFacts.read(options), report))


def run_file(file: ScriptFile, host: ScriptHost) -> ScriptSession:
    """Run the script to its end, in this process."""
    session = ScriptSession(host)
    if isinstance(host, ProbeHost):
        host.session = session
    os.chdir(file.folder)
    sys.argv = [file.path, *file.arguments]
    sys.path.insert(0, str(Path(file.path).parent))
    seed_generators(host.seed)  # models without a seed of their own are equal in all workers
    torch.manual_seed(host.seed)
    enter(session)
    try:
        _run_as_main(file)
        session.close(None)
    except ScriptDoneError:
        return session
    except BaseException as error:
        session.close(error)
        if isinstance(error, ScriptError):
            raise _located(error) from error
        raise
    finally:
        enter(None)
    return session


def _run_as_main(file: ScriptFile) -> None:
    try:
        runpy.run_path(file.path, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):  # else it is  sys.exit(main())
            raise


def _located(error: ScriptError) -> ScriptError:
    """The same, with the line of the script that it is about."""
    if not user_frames(error):
        return error
    where = raised_at(error)
    return ScriptError([replace(problem, what=f"{problem.what} ({where})") for problem in error.problems])


class _Shown(io.TextIOBase):
    """Standard output of a worker: into its log, and the main worker's line by line to the command."""

    def __init__(
        self, log: TextIO, report: Callable[[Report], None], *, is_shown: Callable[[], bool]
    ) -> None:
        self._log = log
        self._report = report
        self._is_shown = is_shown
        self._pid = os.getpid()
        self._line = ""

    def write(self, text: str) -> int:
        written = self._log.write(text)
        if os.getpid() != self._pid:  # a loader process, which must not write into the worker's pipe
            return written
        *lines, self._line = (self._line + text).split("\n")
        for line in lines if self._is_shown() else ():
            self._report({"ev": "note", "text": line})
        return written

    def flush(self) -> None:
        self._log.flush()


def probe_in_process(order: Answer) -> Answer:
    """Run the script until its second batch, and answer with its facts."""
    arguments = order["arguments"]
    assert isinstance(arguments, list), "arguments are a list"
    file = ScriptFile(
        path=str(order["file"]), arguments=tuple(map(str, arguments)), folder=str(order["folder"])
    )
    torch.set_default_dtype(torch.float64 if order["dtype"] == Dtype.FLOAT64 else torch.float32)
    try:
        kind = TrialHost if order["has_trials"] else ProbeHost
        host = kind(file, seed=int(str(order["seed"])), num_workers=int(str(order["num_workers"])))
        run_file(file, host)
        if host.facts is None:
            raise script_error(
                "E120",
                f"{file.name} ended before the second batch of its training",
                "run.prepare(…) the loader, and make at least one optimizer.step()",
            )
        sizes: list[Json] = list(host.facts.batch_sizes(host.num_workers))
        options: dict[str, Json] = dict(host.facts.options(file))
        return {
            "ev": "probed",
            "options": options,
            "batch_sizes": sizes,
            "steps": host.facts.total_steps(host.num_workers),
            **host.habits,
            "trials": _trials_of(host) if isinstance(host, TrialHost) else None,
        }
    except PacelineError as error:
        return _refused(error)
    except TERMINATING_ERRORS as error:
        message = f"{file.name} failed before its second batch: {in_one_line(error)}"
        return _refused(script_error("E120", message, f"it was raised in {raised_at(error)}"))


def _trials_of(host: TrialHost) -> Answer:
    return {
        "model": host.model,
        "num_parameters": host.num_parameters,
        "repeated": host.repeated.value,
        "halved": host.halved.value,
        "has_batch_statistics": host.has_batch_statistics,
    }


def _refused(error: PacelineError) -> Answer:
    problems: list[Json] = [dict(problem) for problem in error.to_dicts()]
    return {"ev": "refused", "problems": problems, "exit_code": int(error.exit_code)}
