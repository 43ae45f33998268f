"""Ray actor's side of an elastic run: a worker in the launcher's own run folder.

The actor must be on the launcher's machine. It proves that by opening the launcher's memory, which is
possible for a process of the same machine, container and user only; any other is refused before it joins.
launchers/ray/actor.py loads `Side` by name.
"""

import json
import os
import sys
import threading
from pathlib import Path

from paceline import __version__
from paceline.coordinator.run_endpoint import CoordinatorEndpoint
from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, HopelessError, NotReadyError
from paceline.plan.catalog import SCRIPT_TASK
from paceline.plan.codec import loads
from paceline.plan.plan import Plan
from paceline.tasks.load import task_class
from paceline.worker.context import WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.entry.ray import Message, Outbox
from paceline.worker.entry.script import script_body
from paceline.worker.participant import elastic_body
from paceline.worker.rank_output import log_to
from paceline.worker.reporting import TERMINATING_ERRORS, Report, fault_of, log_error

# A replacement would fail in the same way.
_HOPELESS = (HopelessError, ConfigError, NotReadyError)


class Side:
    def __init__(self, participant: str) -> None:
        self._participant = participant
        self._outbox = Outbox()

    def begin(self, order: str, _saved: bytes | None) -> None:
        thread = threading.Thread(
            target=self._live, args=(json.loads(order),), name=self._participant, daemon=True
        )
        thread.start()

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        update, blobs = self._outbox.take(answers)
        return json.dumps(update), blobs

    def _live(self, order: Message) -> None:
        code = int(ExitCode.TRAINING_FAILED)
        try:
            self._take_part(order)
            code = 0
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: the launcher reports it.
            log_error(error)
            fault = fault_of(error, Path(str(order["run_dir"])) / "logs" / f"{self._participant}.log")
            is_hopeless = isinstance(error, _HOPELESS)
            self._outbox.say({"ev": "error", "who": self._participant, **fault, "hopeless": is_hopeless})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            self._outbox.say({"ev": "exit", "code": code})
            self._outbox.end()

    def _take_part(self, order: Message) -> None:
        plan = loads(str(order["plan"]), where="the launcher's plan")
        _check_alike(str(order["paceline"]))
        control = shared_block(plan, str(order["control"]), str(order["secret"]))
        run_dir = Path(str(order["run_dir"]))
        folder = Path(str(order["cwd"]))
        log_to(run_dir / "logs" / f"{self._participant}.log")
        os.chdir(folder)  # user tasks are imported from there, as without Ray
        environ.let_gloo_use_loopback()
        task_class(plan.task)  # fails here if it cannot be imported, because a replacement would not help
        resume_from = order["resume_from"]
        coordinator = order["coordinator"]
        assert isinstance(coordinator, dict), "an elastic run has a coordinator"
        context = WorkerContext(
            plan=plan,
            run_dir=run_dir,
            control=control,
            rendezvous=Path(),  # not used: every generation has its own file
            token=bytes.fromhex(str(order["token"])),
            resume_from=None if resume_from is None else Path(str(resume_from)),
            coordinator=CoordinatorEndpoint.read(coordinator),
        )
        self._outbox.say({"ev": "started", "who": self._participant, "pid": os.getpid()})
        body = script_body if plan.task == SCRIPT_TASK else elastic_body
        body(plan, self._participant)(context, self._report)

    def _report(self, facts: Report) -> None:
        self._outbox.say({"ev": "report", "who": self._participant, **facts})  # type: ignore[dict-item]  # facts are JSON


def shared_block(plan: Plan, file: str, secret: str) -> ControlBlock:
    """The launcher's own; NotReadyError where it cannot be reached, or is something else of that name."""
    try:
        if secret in Path(file).readlink().name:
            return ControlBlock(plan.num_workers, file=file)
        why = "that is another process"
    except OSError as error:
        why = error.strerror or str(error)
    raise NotReadyError(
        f"a worker of this elastic run does not reach the memory of the command that started it: {why}",
        "elastic workers share memory: all must run on the command's machine, as the same user, and not in"
        " another container; across machines use --restarts 3 instead of --elastic",
    )


def _check_alike(version: str) -> None:
    if version != __version__:
        message = f"paceline is {version} where the run was started, but {__version__} in Ray's Python"
        raise NotReadyError(message, "start Ray with the same Python as the run")
