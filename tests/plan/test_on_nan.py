"""`on_nan`: elastic runs check the mean gradient, other runs only on request."""

import pytest
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts
from paceline.config.train_config import TrainConfig
from paceline.core.errors import ConfigError
from paceline.plan.codec import dumps, loads
from paceline.plan.plan import OnNan
from paceline.plan.resolve import resolve


def decided(**options: object) -> OnNan | None:
    plan = resolve(TrainConfig(**options), Facts())  # type: ignore[arg-type]  # the names are TrainConfig's own
    assert loads(dumps(plan)) == plan
    return plan.strategy.on_nan


def test_an_elastic_run_stops_unless_skip_is_set() -> None:
    assert decided(elastic=True) is OnNan.STOP
    assert decided(shards=4, on_nan="skip") is OnNan.SKIP


def test_another_run_checks_only_on_request() -> None:
    assert decided() is None
    assert decided(on_nan="stop") is OnNan.STOP


@pytest.mark.parametrize("settings", [{"on_nan": "cry"}, {"mode": "asgd", "on_nan": "skip"}], ids=str)
def test_what_cannot_be_is_refused(settings: dict[str, str], wording: Wording) -> None:
    with wording.raises(ConfigError):
        decided(**settings)
