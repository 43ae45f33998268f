"""How is a cassette played? Look by look, on the clock that it brings itself: nothing waits."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.kube.diagnosis.finding import Finding
from paceline.kube.diagnosis.judge import Verdict, Watching, judge
from paceline.kube.diagnosis.record import read_record
from paceline.kube.diagnosis.retry import RetryPolicy
from paceline.kube.diagnosis.snapshot import Snapshot
from paceline.kube.diagnosis.times import read_time

FOLDER = Path(__file__).parent / "cassettes"
CASSETTES = sorted(FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Look:
    at_s: float
    verdict: Verdict
    finding: Finding | None


def read(path: Path) -> dict[str, Any]:
    cassette: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return cassette


def frames(cassette: dict[str, Any]) -> list[Snapshot]:
    made: list[Snapshot] = []
    for frame in cassette["frames"]:
        at_s = read_time(frame["at"])
        assert at_s is not None
        made.append(replace(made[-1], at_s=at_s) if frame.get("again") else read_record(frame, "frame"))
    return made


def play(cassette: dict[str, Any]) -> list[Look]:
    said = dict(cassette.get("policy", {}))
    policy = RetryPolicy(allowed_changes=frozenset(said.pop("allowed_changes", [])), **said)
    past, looks = Watching(), []
    for snapshot in frames(cassette):
        checkpoint = cassette.get("checkpoint")
        verdict, finding, past = judge(snapshot, past, policy, checkpoint=checkpoint)
        looks.append(Look(snapshot.at_s, verdict, finding))
    return looks
