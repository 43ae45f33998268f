"""What must be known about workers and links to predict a run? Frozen, JSON, from a plan or a recording."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.errors import DamagedRecordError
from paceline.plan.codec import decode, to_json
from paceline.plan.plan import Plan
from paceline.simulate.costs import Costs, usual_costs
from paceline.simulate.step_times import Constant, Recorded, Resampled, StepTimes
from paceline.sync.stragglers import StragglerRule

PROFILE_SCHEMA = "paceline.profile/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    num_workers: int
    step_times: tuple[StepTimes, ...]  # one per worker, before pace and stragglers
    batch_sizes: tuple[int, ...]  # samples per gradient, one entry per worker
    pace_s: float = 0.0
    stragglers: tuple[StragglerRule, ...] = ()
    parameter_bytes: int = 0  # of the vector that travels; 0: not known
    starts_at_s: tuple[float, ...] = ()  # when each worker begins; empty: all at once
    costs: Costs = field(default_factory=Costs)
    processors: int | None = None  # that the workers share; None: each has its own
    source: str = "plan"  # where it comes from, in words
    schema: str = PROFILE_SCHEMA

    @property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)

    @property
    def all_wake_s(self) -> float:
        """When all are woken at once: how long until the last of them computes."""
        sharing = 1.0 if self.processors is None else max(1.0, self.num_workers / self.processors)
        return self.costs.wake_up_s + self.costs.turn_s * (sharing - 1)

    @property
    def is_measured(self) -> bool:
        return any(isinstance(model, Recorded | Resampled) for model in self.step_times)


def profile_from_plan(
    plan: Plan, *, costs: Costs | None = None, parameter_bytes: int = 0, processors: int | None = None
) -> Profile:
    """What the plan alone says: pace and stragglers. How long real compute takes, it cannot know."""
    return Profile(
        num_workers=plan.num_workers,
        step_times=(Constant(0.0),) * plan.num_workers,
        batch_sizes=plan.batch_sizes,
        pace_s=plan.pace_s,
        stragglers=plan.stragglers,
        parameter_bytes=parameter_bytes,
        costs=usual_costs(plan.transport) if costs is None else costs,
        processors=processors,
    )


def with_workers(profile: Profile, num_workers: int) -> Profile:
    """The same, with more or fewer workers: worker r is like worker r mod N of the profile."""
    known = profile.num_workers
    return dataclasses.replace(
        profile,
        num_workers=num_workers,
        step_times=tuple(profile.step_times[r % known] for r in range(num_workers)),
        batch_sizes=tuple(profile.batch_sizes[r % known] for r in range(num_workers)),
        starts_at_s=(),
    )


def resampled(profile: Profile) -> Profile:
    """Recorded steps in another order with every seed: what another run might have seen."""

    def shuffled(model: StepTimes) -> StepTimes:
        return Resampled(model.steps_s) if isinstance(model, Recorded) else model

    return dataclasses.replace(profile, step_times=tuple(map(shuffled, profile.step_times)))


def with_step_times(profile: Profile, step_times: Sequence[StepTimes]) -> Profile:
    """Other models in place of pace; straggler rules stay."""
    return dataclasses.replace(profile, step_times=tuple(step_times), pace_s=0.0)


def dumps(profile: Profile) -> str:
    return json.dumps(to_json(profile), indent=2, sort_keys=True) + "\n"


def loads(text: str, *, where: str = "profile.json") -> Profile:
    try:
        profile = decode(Profile, text, schema=PROFILE_SCHEMA)
    except ValueError as error:
        raise DamagedRecordError(
            f"{where} is not a profile this version can read: {error}",
            "make it again from the run, with this version of paceline",
        ) from error
    assert isinstance(profile, Profile), "decode(Profile, …) builds a Profile"
    return profile
