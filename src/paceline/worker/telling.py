"""What does a participant say about its checkpoints? To the event log, to whoever watches, to the launcher.

News come from the thread that writes; they are told by the training thread,
because an event log has one pen. Whoever watches is told once when something
begins to go wrong, and once when it is well again.
"""

from collections.abc import Callable, Iterable

from paceline.checkpoints.writer import News
from paceline.events.log import Log
from paceline.events.schema import Scalar

Report = dict[str, Scalar | dict[str, float]]


def tell_nobody(report: Report) -> None:
    """For participants without a launcher."""


class CheckpointTeller:
    def __init__(self, log: Log, report: Callable[[Report], None] = tell_nobody) -> None:
        self._log, self._report = log, report
        self._is_failing = False
        self._told: set[str] = set()  # what is said once

    def tell(self, news: Iterable[News]) -> None:
        for one in news:
            if one.is_skipped:
                self._skipped(one)
            elif one.failure:
                self._failed(one)
            else:
                self._written(one)

    def _written(self, news: News) -> None:
        self._log.write(
            "checkpoint",
            path=news.name,
            step=news.step,
            snapshot_ns=news.pause_ns,
            write_s=news.write_s,
            bytes=news.nbytes,
            catalogued=news.is_catalogued,
        )
        removed = ",".join(map(str, news.removed))
        self._report({"ev": "checkpoint", "path": news.name, "removed": removed})
        if self._is_failing:
            self._is_failing = False
            self._note(f"checkpoints are written again: {news.name}")
        if news.trouble:
            self._once("catalogue", f"checkpoint {news.name} is not in the catalogue: {news.trouble}")

    def _failed(self, news: News) -> None:
        self._log.write("checkpoint_failed", path=news.name, step=news.step, reason=news.failure)
        if not self._is_failing:
            self._is_failing = True
            self._note(
                f"warning: checkpoint {news.name} could not be written: {news.failure}; "
                "training goes on, and the checkpoint before it stays"
            )

    def _skipped(self, news: News) -> None:
        self._log.write("checkpoint_skipped", path=news.name, step=news.step)
        self._once(
            "skipped",
            f"checkpoint {news.name} is left out: those before it are still being written; "
            "a larger --checkpoint-every leaves out none",
        )

    def _once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._note(text)

    def _note(self, text: str) -> None:
        self._report({"ev": "note", "text": text})
