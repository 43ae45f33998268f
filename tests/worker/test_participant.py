"""Every participant lives the same life: started, trained, released, finished, reported, in this order."""

import os

import pytest

from paceline.events.log import MemoryLog
from paceline.events.schema import Scalar
from paceline.worker.participant import Ending, run_participant
from paceline.worker.reporting import Report


class NotingLog(MemoryLog):
    """Notes what happens to it in the order in which it does."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def write(self, kind: str, **fields: Scalar) -> None:
        self._seen.append(kind)
        super().write(kind, **fields)

    def close(self) -> None:
        self._seen.append("closed")


class Participant:
    def __init__(self, *, reason: str | None = "done", fails_in: str = "") -> None:
        self.seen: list[str] = []
        self.log = NotingLog(self.seen)
        self.reports: list[Report] = []
        self._reason = reason
        self._fails_in = fails_in

    def run(self) -> None:
        run_participant(
            self.log,
            self._report,
            clock=3,
            fields={"node": "here"},
            train=self._train,
            release=lambda: self._do("released"),
            conclude=self._conclude,
            leave=lambda: self._do("left"),
        )

    def _train(self) -> int:
        self._do("trained")
        return 7

    def _conclude(self, steps: int) -> Ending:
        self._do("concluded")
        return Ending(steps=steps, reason=self._reason, facts=self._facts, fields={"peak_device_bytes": 5})

    def _facts(self) -> Report:
        self._do("facts")
        return {"steps": 7}

    def _report(self, facts: Report) -> None:
        self.reports.append(facts)
        self._do("reported")

    def _do(self, description: str) -> None:
        self.seen.append(description)
        if description == self._fails_in:
            raise ValueError(description)


def test_a_participant_starts_trains_finishes_and_reports() -> None:
    participant = Participant()
    participant.run()
    assert participant.seen == [
        "worker_started",
        "trained",
        "released",
        "concluded",
        "worker_finished",
        "closed",
        "facts",
        "left",
        "reported",
    ]
    started, finished = participant.log.plain
    assert started.fields == {"pid": os.getpid(), "clock": 3, "node": "here"}
    assert finished.fields == {"steps": 7, "reason": "done", "peak_device_bytes": 5}
    assert participant.reports == [{"steps": 7}]


def test_a_participant_without_work_reports_without_a_last_event() -> None:
    participant = Participant(reason=None)
    participant.run()
    assert "worker_finished" not in participant.seen
    assert participant.seen[-1] == "reported"


@pytest.mark.parametrize(
    ("fails_in", "afterwards"),
    [
        ("trained", ["released", "left"]),
        ("released", ["left"]),
        ("concluded", ["left"]),
        ("facts", ["left"]),
    ],
)
def test_what_is_held_is_let_go_of_also_when_a_participant_fails_and_nothing_is_reported(
    fails_in: str, afterwards: list[str]
) -> None:
    participant = Participant(fails_in=fails_in)
    with pytest.raises(ValueError, match=fails_in):
        participant.run()
    assert participant.seen[participant.seen.index(fails_in) + 1 :] == afterwards
    assert participant.reports == []
