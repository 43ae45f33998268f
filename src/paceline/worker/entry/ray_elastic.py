"""What does an actor of Ray do in an elastic run? What a forked worker of one does, in the same run folder.

It is on the launcher's machine, and proves it by opening the launcher's own memory, which nobody else can:
another machine, container or user is refused before it joins. launchers/ray/actor.py calls it by name.
"""

import json
import os
import sys
import threading
from pathlib import Path

from paceline import __version__
from paceline.core import environ
from paceline.core.errors import ConfigError, ExitCode, HopelessError, NotReadyError
from paceline.plan.codec import loads
from paceline.plan.plan import Plan
from paceline.tasks.load import task_class
from paceline.worker.context import CoordinatorEndpoint, WorkerContext
from paceline.worker.control import ControlBlock
from paceline.worker.entry.ray import Message, Outbox
from paceline.worker.participant import elastic_body
from paceline.worker.rank_output import log_to
from paceline.worker.reporting import TERMINATING_ERRORS, Report, fault_of, log_error

# A replacement would meet the same.
_HOPELESS = (HopelessError, ConfigError, NotReadyError)


class Side:
    def __init__(self, who: str) -> None:
        self._who, self._outbox = who, Outbox()

    def begin(self, order: str, _saved: bytes | None) -> None:
        thread = threading.Thread(target=self._live, args=(json.loads(order),), name=self._who, daemon=True)
        thread.start()

    def poll(self, answers: str) -> tuple[str, list[bytes]]:
        said, blobs = self._outbox.take(answers)
        return json.dumps(said), blobs

    def _live(self, order: Message) -> None:
        code = int(ExitCode.TRAINING_FAILED)
        try:
            self._take_part(order)
            code = 0
        except TERMINATING_ERRORS as error:
            # Also a failure of the user's task: the launcher tells it.
            log_error(error)
            fault = fault_of(error, Path(str(order["run_dir"])) / "logs" / f"{self._who}.log")
            is_hopeless = isinstance(error, _HOPELESS)
            self._outbox.say({"ev": "error", "who": self._who, **fault, "hopeless": is_hopeless})
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            self._outbox.say({"ev": "exit", "code": code})
            self._outbox.end()

    def _take_part(self, order: Message) -> None:
        plan = loads(str(order["plan"]), where="the launcher's plan")
        _check_alike(str(order["paceline"]))
        control = shared_block(plan, str(order["control"]), str(order["secret"]))
        run_dir, here = Path(str(order["run_dir"])), Path(str(order["cwd"]))
        log_to(run_dir / "logs" / f"{self._who}.log")
        os.chdir(here)  # a task of the user's own is looked for there, as without Ray
        environ.let_gloo_use_loopback()
        task_class(plan.task)  # one that cannot be imported is no loss that a replacement would mend
        resume_from, coordinator = order["resume_from"], order["coordinator"]
        assert isinstance(coordinator, dict), "an elastic run has a coordinator"
        seat = WorkerContext(
            plan=plan,
            run_dir=run_dir,
            control=control,
            rendezvous=Path(),  # nobody meets by one: every generation has a place of its own
            token=bytes.fromhex(str(order["token"])),
            resume_from=None if resume_from is None else Path(str(resume_from)),
            coordinator=CoordinatorEndpoint.read(coordinator),
        )
        self._outbox.say({"ev": "started", "who": self._who, "pid": os.getpid()})
        elastic_body(plan, self._who)(seat, self._report)

    def _report(self, facts: Report) -> None:
        self._outbox.say({"ev": "report", "who": self._who, **facts})  # type: ignore[dict-item]  # facts are JSON


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
        what = f"paceline is {version} where the run was started, but {__version__} in Ray's Python"
        raise NotReadyError(what, "start Ray with the same Python as the run")
