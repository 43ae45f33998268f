"""Should the workers share out the work differently, or agree in another way? Numbers in, a decision out.

Every so many steps everybody sees how long each worker's latest steps took, per
sample: a window. What the window would have taken under each way of agreeing
can be computed from that. A way is chosen if its shares, dealt by the speeds of
the window before, would have been enough faster in this one: so speeds that
flip from window to window lead to nothing. A more intrusive way must be worth
10 %, in two windows running; other shares in the same way 3 %; a simpler way is
taken again once it costs no more than 3 %. See docs/decisions/0016.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from paceline.sync.setting import Setting, Terms, Way

FIRST_DECISIONS, DECIDE_EVERY = (4, 8), 16  # steps
KEPT = DECIDE_EVERY  # of each worker's latest steps
WORTH_A_WAY, WORTH_A_SHARE = 0.10, 0.03
_DOUBT = 2.0  # times the noise of a mean
_SLOW = 1.2  # times as long as the fastest: worth naming in a reason

Window = Sequence[Sequence[float]]  # by worker: seconds per sample of its latest steps


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered from one decision to the next; the same at every worker."""

    setting: Setting
    seconds: tuple[float, ...] = ()  # per sample, by worker, in the window before
    wish: Way | None = None  # what looked best in that window


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    reason: str | None = None  # in words; None: nothing changes


def first_state(terms: Terms) -> State:
    return State(terms.as_planned(terms.ways[0]))


def next_decision(done: int) -> int:
    """The number of steps after which all decide again; in a round of local steps, at its end."""
    early = (step for step in FIRST_DECISIONS if step > done)
    return next(early, (done // DECIDE_EVERY + 1) * DECIDE_EVERY)


def decide(state: State, window: Window, terms: Terms) -> Decision:
    """Every worker comes to the same decision, because all are told the same numbers."""
    if not all(window):
        return Decision(state)  # somebody has nothing to show yet
    seconds, now, trial = lasting_s(window), state.setting, Trial(window, terms)
    wish = trial.best(now, seconds)
    if not state.seconds:
        # Where only shares can change, the first ones are dealt at once: little is lost if they are wrong.
        is_clear = len(terms.ways) == 1 and trial.is_better(wish, now, WORTH_A_WAY)
        setting, believed = wish if is_clear else now, seconds
    else:
        best = trial.best(now, state.seconds)
        is_confirmed = best.way is now.way or best.way is state.wish
        believed = tuple((one + other) / 2 for one, other in zip(state.seconds, seconds, strict=True))
        if best != now and best != terms.as_planned(best.way):
            best = terms.by_speed(best.way, believed)
        setting = best if is_confirmed else now
    after = State(setting, seconds, wish.way)
    return Decision(after, None if setting == now else _reason(now, setting, believed, trial))


def lasting_s(window: Window) -> tuple[float, ...]:
    """Seconds per sample, by worker, as far as they can be believed to last.

    How far a worker's mean is from the others' is only believed beyond the noise of a mean; a worker that
    had no bad luck in this window is no less noisy than the rest.
    """
    means = [fmean(own) for own in window]
    noise = [variance(own) / len(own) if len(own) > 1 else 0.0 for own in window]
    usual, common_noise = median(means), fmean(noise)
    return tuple(
        usual + _beyond(mean - usual, _DOUBT * max(own_noise, common_noise))
        for mean, own_noise in zip(means, noise, strict=True)
    )


def _beyond(difference: float, noise: float) -> float:
    """What is left of a difference when noise, as a square, is taken off; 0 if it may be noise alone."""
    return difference * max(0.0, 1.0 - noise / difference**2) if difference else 0.0


def step_s(setting: Setting, window: Window, terms: Terms) -> float:
    """What a step of the run would have taken in this window; steps that are missing are taken again."""
    if setting.way is not Way.LOCAL_STEPS:
        steps = max(map(len, window))
        slowest = (
            max(own[step % len(own)] * share for own, share in zip(window, setting.shares, strict=True))
            for step in range(steps)
        )
        return sum(slowest) / steps
    rounds = max(1, KEPT // terms.period)
    ends = (
        max(_sum_from(own, turn * share, share) for own, share in zip(window, setting.shares, strict=True))
        for turn in range(rounds)
    )
    return sum(ends) * terms.batch_sizes[0] / (rounds * terms.period)


def _sum_from(values: Sequence[float], start: int, count: int) -> float:
    """Of `count` values from `start` on, beginning again at the end."""
    whole, rest = divmod(count, len(values))
    return whole * sum(values) + sum(values[(start + k) % len(values)] for k in range(rest))


@dataclass(frozen=True, slots=True)
class Trial:
    """What each setting would have made of one window."""

    window: Window
    terms: Terms

    def best(self, now: Setting, seconds: Sequence[float]) -> Setting:
        """What it would have been worth going over to, with shares that follow `seconds`."""
        best, ways = self._better(now, self._offer(now.way, seconds), WORTH_A_SHARE), self.terms.ways
        for way in ways[: ways.index(now.way)]:
            simpler = self._offer(way, seconds)
            if self.step_s(simpler) <= self.step_s(best) * (1 + WORTH_A_SHARE):
                return simpler
        for way in ways[ways.index(now.way) + 1 :]:
            best = self._better(best, self._offer(way, seconds), WORTH_A_WAY)
        return best

    def is_better(self, one: Setting, other: Setting, gain: float) -> bool:
        """Is it faster by so much?"""
        return 0 < self.step_s(one) * (1 + gain) <= self.step_s(other)

    def step_s(self, setting: Setting) -> float:
        return step_s(setting, self.window, self.terms)

    def _offer(self, way: Way, seconds: Sequence[float]) -> Setting:
        """Shares by speed if they are worth it: after passing delays equal ones do better."""
        return self._better(self.terms.as_planned(way), self.terms.by_speed(way, seconds), WORTH_A_SHARE)

    def _better(self, one: Setting, other: Setting, gain: float) -> Setting:
        """The other, if it is faster by so much."""
        return other if self.is_better(other, one, gain) else one


def _reason(was: Setting, now: Setting, seconds: Sequence[float], trial: Trial) -> str:
    before_s, after_s = trial.step_s(was), trial.step_s(now)
    gain = f"a step takes {after_s * 1e3:.1f} ms instead of {before_s * 1e3:.1f} ms"
    if after_s > before_s:
        gain = f"a step takes {after_s * 1e3:.1f} ms, hardly more than {before_s * 1e3:.1f} ms"
    is_planned = now == trial.terms.as_planned(now.way)
    if now.way is not Way.LOCAL_STEPS:
        batches = "the planned batches" if is_planned else "batches by speed"
        return f"{_speeds(seconds)}: with {batches} {gain}"
    if was.way is Way.LOCAL_STEPS:
        local_steps = "equal local steps" if is_planned else "local steps by speed"
        return f"{_speeds(seconds)}: with {local_steps} {gain}"
    cause = "delays come and go" if is_planned else f"delays come and go, and {_speeds(seconds)}"
    return f"{cause}: with a meeting every {trial.terms.period} steps {gain}"


def _speeds(seconds: Sequence[float]) -> str:
    """Who was slow in the last two windows, in words."""
    fastest = max(min(seconds), 1e-12)
    slow = [(worker, own / fastest) for worker, own in enumerate(seconds) if own > _SLOW * fastest]
    if not slow:
        return "all workers are about equally fast"
    slow.sort(key=lambda one: -one[1])
    named = ", ".join(f"worker {worker} takes {times:.1f} times as long" for worker, times in slow[:3])
    more = f" and {len(slow) - 3} more are slow" if len(slow) > 3 else ""
    return f"{named} per sample as the fastest{more}"
