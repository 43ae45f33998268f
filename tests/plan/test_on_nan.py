"""Who looks whether a step's mean is finite? Elastic runs, and whoever asks for it."""

import pytest

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.codec import dumps, loads
from paceline.plan.plan import OnNan
from paceline.plan.resolve import resolve


def decided(**said: object) -> OnNan | None:
    plan = resolve(TrainConfig(**said), Facts())  # type: ignore[arg-type]  # the names are TrainConfig's own
    assert loads(dumps(plan)) == plan
    return plan.strategy.on_nan


def test_an_elastic_run_stops_unless_it_is_told_to_skip() -> None:
    assert decided(elastic=True) is OnNan.STOP
    assert decided(shards=4, on_nan="skip") is OnNan.SKIP


def test_another_run_looks_only_if_it_is_asked_to() -> None:
    assert decided() is None
    assert decided(on_nan="stop") is OnNan.STOP


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"on_nan": "cry"}, "on_nan is cry, but it must be one of stop, skip"),
        ({"mode": "asgd", "on_nan": "skip"}, "mode asgd does not read on_nan"),
    ],
)
def test_what_cannot_be_is_refused(said: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decided(**said)
    assert any(what in problem.what for problem in caught.value.problems), caught.value.problems
