"""Failures of a Ray Tune listener are reported as such, and not as the death of a trial."""

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

from paceline.tune.ray_tune import Callback, PlacedTrial


@dataclass
class FullDisk:
    """Listens until it has to write."""

    told: list[str] = field(default_factory=list)

    def began(self, number: int) -> None:
        self.told.append(f"began {number}")

    def on_report(self, number: int, report: Mapping[str, object]) -> None:
        self.told.append(f"heard {number}")

    def ended(self, number: int) -> None:
        raise OSError(28, f"no space left for trial {number}")

    def restarted(self, number: int, why: str) -> None:
        self.told.append(f"again {number}")

    def lost(self, number: int, why: str) -> None:
        self.told.append(f"lost {number}")


def test_the_first_error_of_the_listener_is_kept_and_nothing_is_reported_after_it() -> None:
    listener = FullDisk()
    callback = Callback(listener)
    one, two = (
        SimpleNamespace(config={"trial": json.dumps(asdict(PlacedTrial(number=n, text="", cpus=1, gpus=0)))})
        for n in (1, 2)
    )
    callback.on_trial_start(0, [], one)
    callback.on_trial_result(0, [], one, {"number": 1})
    assert callback.error is None
    callback.on_trial_complete(0, [], one)
    callback.on_trial_complete(0, [], two)
    callback.on_trial_error(0, [], two)
    assert isinstance(callback.error, OSError)
    assert callback.error.errno == errno.ENOSPC
    assert "trial 1" in str(callback.error)
    assert listener.told == ["began 1", "heard 1"]
