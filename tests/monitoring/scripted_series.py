"""Series that make a rule pending, fire and end: drawn by a seed, around the limits of its conditions."""

import random
from collections.abc import Iterator

from paceline.monitoring.alerts.rules import Condition, Reading, Reduce, Rule
from paceline.monitoring.metrics.catalog import BY_NAME, Labels, MetricKind, Sample, labels_of

STEP_S = 15.0
Values = list[float | None]  # None: the series is not there
Scripted = dict[tuple[str, Labels], Values]


def scripted(rule: Rule, seed: int, steps: int) -> Scripted:
    rng = random.Random(f"{rule.name} {seed}")
    made: Scripted = {}
    conditions = [*rule.conditions, *([rule.clear_when] if rule.clear_when else [])]
    for condition in conditions:
        for labels in _series_of(condition.left, rng):
            if (condition.left.metric, labels) in made:
                continue
            right: Values | None = None
            if isinstance(condition.limit, Reading) and condition.limit.metric != condition.left.metric:
                key = (condition.limit.metric, labels)
                right = made.setdefault(key, [float(rng.randint(4, 40))] * steps)
            made[condition.left.metric, labels] = _left(condition, rng, steps, right)
    return made


def samples_at(made: Scripted, step: int) -> Iterator[Sample]:
    for (name, labels), values in made.items():
        value = values[step]
        if value is not None:
            yield Sample(name, labels, value)


def _series_of(reading: Reading, rng: random.Random) -> list[Labels]:
    """One or two series, with the labels that the family has."""
    names = BY_NAME[reading.metric].labels
    base = dict.fromkeys(names, "a") | dict(reading.where)
    free = [name for name in names if name not in ("run", *dict(reading.where))]
    if not free or rng.random() < 0.3:
        return [labels_of(base)]
    return [labels_of(base), labels_of(base | {free[0]: "b"})]


def _left(condition: Condition, rng: random.Random, steps: int, right: Values | None) -> Values:
    reading, family = condition.left, BY_NAME[condition.left.metric]
    if reading.reduce is Reduce.ABSENT:
        values: Values = [1.0] * steps
    elif reading.reduce is Reduce.AGE:
        values = _moments(condition, rng, steps)
    elif family.kind is MetricKind.COUNTER:
        values = _counted(rng, steps)
    elif reading.reduce is Reduce.FORECAST:
        values = _falling(rng, steps)
    else:
        values = _around(condition, rng, steps, right)
    if rng.random() < 0.35:  # it goes for a while, or for ever
        gone = rng.randrange(steps)
        for i in range(gone, min(steps, gone + rng.randint(1, steps))):
            values[i] = None
    return values


def _around(condition: Condition, rng: random.Random, steps: int, right: Values | None) -> Values:
    if isinstance(condition.limit, Reading):
        limit = (right or [10.0])[0] or 10.0
        limit *= condition.times
    else:
        limit = condition.limit
    if limit == 0 or (limit == 1 and condition.left.reduce is Reduce.LAST):
        levels = [-1.0, 0.0, 1.0, 2.0]
    else:
        levels = [0.3 * limit, 0.8 * limit, 1.2 * limit, 3.0 * limit]
        if right is None and condition.times > 4:  # so many times what it usually is itself
            levels[-1] *= condition.times
    values: Values = []
    while len(values) < steps:
        level, lasts = rng.choice(levels), rng.randint(1, 30)
        is_exact = limit == 0 or level == int(level)
        values += [level if is_exact else round(level * rng.uniform(0.97, 1.03), 6) for _ in range(lasts)]
    return values[:steps]


def _counted(rng: random.Random, steps: int) -> Values:
    value, values, pace = 0.0, [], 0.0
    for i in range(steps):
        if i % 12 == 0:
            pace = rng.choice([0.0, 0.0, 0.05, 0.3, 2.0])
        value += float(rng.random() < pace) if pace < 1 else rng.uniform(1, 4)
        if rng.random() < 0.004:
            value = 0.0  # the counting process restarted
        values.append(round(value, 6))
    return list(values)


def _moments(condition: Condition, rng: random.Random, steps: int) -> Values:
    """Moments that are now and then not renewed for a while."""
    assert isinstance(condition.limit, float), "an age is compared with a number"
    values: Values = []
    last_s, frozen = 0.0, 0
    for i in range(steps):
        if frozen == 0:
            last_s = i * STEP_S
            if rng.random() < 0.03:
                frozen = rng.randint(1, int(2 * condition.limit / STEP_S) + 2)
        else:
            frozen -= 1
        values.append(last_s)
    return values


def _falling(rng: random.Random, steps: int) -> Values:
    value, slope = 1e6, rng.choice([0.0, -20.0, -200.0, -2000.0])
    values: Values = []
    for i in range(steps):
        if i and i % 60 == 0:
            slope = rng.choice([0.0, -20.0, -200.0, 500.0])
        value += slope + rng.uniform(-5, 5)
        values.append(round(value, 3))
    return values
