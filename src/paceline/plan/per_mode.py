"""What does one config mean under several modes, and what is the same work done alone?

Each mode gets the settings that it reads. `alone` is what every mode is measured
against: one worker that does the same steps on the same samples, with the time
of all to compute them. Pure.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

from paceline.config.train_config import TrainConfig
from paceline.plan import decide
from paceline.plan.catalog import MODES
from paceline.plan.plan import Plan, StrategyOptions, Transport

BASELINE = "single"
_KNOBS = frozenset(field.name for field in dataclasses.fields(StrategyOptions))


def config_for(config: TrainConfig, mode: str) -> TrainConfig:
    """The config under this mode; settings that the mode does not read are left out."""
    known = decide.mode_of(replace(config, mode=mode))
    unread = frozenset[str]() if known is None or known.options is None else _KNOBS - known.options
    said = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in unread}
    return TrainConfig(**{**said, "mode": mode})


def unread_by_all(config: TrainConfig, modes: Sequence[str]) -> list[str]:
    """Settings that were said and that none of these modes reads."""
    if any(":" in mode for mode in modes):
        return []  # the user's own mode may read whatever it likes
    known = [options for mode in modes if mode in MODES and (options := MODES[mode].options) is not None]
    if len(known) < sum(mode in MODES for mode in modes):
        return []  # one of them reads any
    read = frozenset[str]().union(*known)
    return [name for name in sorted(_KNOBS - read) if getattr(config, name) is not None]


def alone(plan: Plan) -> Plan:
    """The same steps on the same samples by one worker that nobody slows down by its number.

    It takes as long as all of them together: a paced step lasts as much longer as it has more samples.
    """
    return replace(
        plan,
        mode=BASELINE,
        num_workers=1,
        batch_sizes=(plan.global_batch,),
        transport=Transport.NONE,
        lr_scale=1.0,
        compress=None,
        strategy=StrategyOptions(),
        stragglers=tuple(rule for rule in plan.stragglers if rule.worker is None),
        byzantine=(),
        elastic=None,
        vmap=False,
        pace_s=plan.pace_s * plan.num_workers,
    )
