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
MAX_CONCURRENT = 32  # wishes that are carried out; each is a thread


class BusyError(PacelineError):
    """Too much is asked at once."""

    exit_code = ExitCode.DEGRADED
    code = "E326"


@dataclass(slots=True)
class QueuedAction:
    run: str
    wanted: ActionRequest
    steps: list[Step] = field(default_factory=list)
    has_answer: threading.Event = field(default_factory=threading.Event)  # accepted, or not

    def is_for(self, run: str, wanted: ActionRequest) -> bool:
        """Is this the same wish, asked again?"""
        mine = self.wanted
        return (self.run, mine.deed, mine.worker) == (run, wanted.deed, wanted.worker)

    def json(self) -> dict[str, Json]:
        wanted = self.wanted
        return {
            "id": wanted.id,
            "run": self.run,
            "action": wanted.deed.value,
            "target": wanted.worker,
            "by": wanted.by,
            "source": wanted.source,
            "phase": self.steps[-1].phase.value if self.steps else Phase.REQUESTED.value,
            "steps": [step.json() for step in self.steps],
        }


class ActionQueue:
    def __init__(self) -> None:
        self._asked: dict[str, QueuedAction] = {}
        self._lock = threading.Lock()
        self._holders: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def ask(self, run: str, run_dir: Path, wanted: ActionRequest) -> tuple[QueuedAction, bool]:
        """The wish, and whether it is new."""
        with self._lock:
            if (found := self._asked.get(wanted.id)) is not None:
                return found, False
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= MAX_CONCURRENT:
                what = f"{len(self._threads)} wishes are being carried out"
                raise BusyError(what, "wait until one of them has come to its end")
            asked = self._asked[wanted.id] = QueuedAction(run, wanted)
            while len(self._asked) > MAX_KEPT:
                del self._asked[next(iter(self._asked))]
            # A daemon: whoever ends the server does not wait for an effect.
            thread = threading.Thread(target=self._carry_out, args=(run_dir, asked), daemon=True)
            self._threads.append(thread)
        thread.start()
        return asked, True

    def list(self, run: str) -> list[Json]:
        self._bury()
        with self._lock:
            return [asked.json() for asked in self._asked.values() if asked.run == run]

    def close(self) -> None:
        """Everybody who is held goes on."""
        with self._lock:
            holders = [*self._holders]  # one that begins now ends with us: its stdin closes
        for holder in holders:
            if holder.stdin is not None:
                holder.stdin.close()
            holder.wait()

    def _carry_out(self, run_dir: Path, asked: QueuedAction) -> None:
        def tell(step: Step) -> None:
            asked.steps.append(step)
            if step.phase is not Phase.REQUESTED:
                asked.has_answer.set()

        act = ActionExecutor(run_dir, asked.wanted, tell, holders=self._holders)
        try:
            act.run()
        except (PacelineError, OSError) as error:
            what = error.what if isinstance(error, PacelineError) else str(error)
            tell(Step(Phase.FAILED, what, 0.0))
        except BaseException as error:  # a fault of ours: whoever asked is told, too, and it is not hidden
            tell(Step(Phase.FAILED, f"it broke: {type(error).__name__}: {error}", 0.0))
            raise
        finally:
            asked.has_answer.set()
            self._bury()

    def _bury(self) -> None:
        with self._lock:
            for holder in [holder for holder in self._holders if holder.poll() is not None]:
                if holder.stdin is not None:
                    holder.stdin.close()
                self._holders.remove(holder)
