"""Action queue: actions in progress and finished; a repeated idempotency key returns the first action.

Each action runs in a thread through the executor that the command line uses. Its phases go to the run's log;
the queue keeps them only for status requests.
"""

import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.errors import ExitCode, PacelineError
from paceline.faults.actions.executor import ActionExecutor
from paceline.faults.actions.request import ActionRequest, Phase, Step
from paceline.plan.codec import Json

MAX_KEPT = 500
MAX_CONCURRENT = 32  # actions in progress; each is a thread


class BusyError(PacelineError):
    """Too many actions at once."""

    exit_code = ExitCode.DEGRADED
    code = "E326"


@dataclass(slots=True)
class QueuedAction:
    run: str
    request: ActionRequest
    steps: list[Step] = field(default_factory=list)
    is_decided: threading.Event = field(default_factory=threading.Event)  # accepted or refused

    def is_for(self, run: str, request: ActionRequest) -> bool:
        """Whether the request repeats this action."""
        own = self.request
        return (self.run, own.kind, own.worker) == (run, request.kind, request.worker)

    def json(self) -> dict[str, Json]:
        request = self.request
        return {
            "id": request.id,
            "run": self.run,
            "action": request.kind.value,
            "target": request.worker,
            "by": request.by,
            "source": request.source,
            "phase": self.steps[-1].phase.value if self.steps else Phase.REQUESTED.value,
            "steps": [step.json() for step in self.steps],
        }


class ActionQueue:
    def __init__(self) -> None:
        self._actions: dict[str, QueuedAction] = {}
        self._lock = threading.Lock()
        self._holders: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def submit(self, run: str, run_dir: Path, request: ActionRequest) -> tuple[QueuedAction, bool]:
        """The action, and whether it is new."""
        with self._lock:
            if (known := self._actions.get(request.id)) is not None:
                return known, False
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= MAX_CONCURRENT:
                message = f"{len(self._threads)} requests are in progress"
                raise BusyError(message, "wait until one of them has finished")
            action = self._actions[request.id] = QueuedAction(run, request)
            while len(self._actions) > MAX_KEPT:
                del self._actions[next(iter(self._actions))]
            # A daemon: shutting down does not wait for an effect.
            thread = threading.Thread(target=self._execute, args=(run_dir, action), daemon=True)
            self._threads.append(thread)
        thread.start()
        return action, True

    def list(self, run: str) -> list[Json]:
        self._reap_holders()
        with self._lock:
            return [action.json() for action in self._actions.values() if action.run == run]

    def close(self) -> None:
        """All stopped workers continue."""
        with self._lock:
            holders = [*self._holders]  # one that starts now ends with this process: its stdin closes
        for holder in holders:
            if holder.stdin is not None:
                holder.stdin.close()
            holder.wait()

    def _execute(self, run_dir: Path, action: QueuedAction) -> None:
        def on_step(step: Step) -> None:
            action.steps.append(step)
            if step.phase is not Phase.REQUESTED:
                action.is_decided.set()

        executor = ActionExecutor(run_dir, action.request, on_step, holders=self._holders)
        try:
            executor.run()
        except (PacelineError, OSError) as error:
            message = error.what if isinstance(error, PacelineError) else str(error)
            on_step(Step(Phase.FAILED, message, 0.0))
        except BaseException as error:  # a bug: reported to the client and raised
            on_step(Step(Phase.FAILED, f"internal error: {type(error).__name__}: {error}", 0.0))
            raise
        finally:
            action.is_decided.set()
            self._reap_holders()

    def _reap_holders(self) -> None:
        with self._lock:
            for holder in [holder for holder in self._holders if holder.poll() is not None]:
                if holder.stdin is not None:
                    holder.stdin.close()
                self._holders.remove(holder)
