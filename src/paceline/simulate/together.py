"""How long does it take when workers meet? Alone, at every step, or every H steps.

Between two meetings nobody depends on anybody, so a run is the sum, over its
meetings, of the slowest worker's time: whole arrays at once, no queue.
"""

import numpy as np

from paceline.plan.catalog import Channel
from paceline.simulate.durations import Nanoseconds, all_steps, matrix, starts_ns
from paceline.simulate.prediction import Outline, Trace, ring_bytes
from paceline.simulate.profile import Profile
from paceline.simulate.ways import Local, Together
from paceline.sync.averaging import averages_after


def alone(profile: Profile, *, steps: int, seed: int) -> Outline:
    """Worker 0 makes the gradients of all, one after another."""
    gradients = steps * profile.num_workers
    own = all_steps(profile, seed, expected=gradients)[0].first(gradients)
    ends = np.cumsum(own + _ns(profile.costs.apply_s))
    return Outline(
        total_ns=int(ends[-1]),
        compute_ns=int(own.sum()),
        wait_ns=0,
        steps=(gradients,),
        samples=steps * profile.global_batch,
        syncs=0,
        bytes_each_way=0,
        trace=Trace(np.zeros(gradients, dtype=np.int64), ends),
    )


def together(profile: Profile, way: Together, *, steps: int, seed: int) -> Outline:
    costs, workers = profile.costs, profile.num_workers
    compute = matrix(profile, seed, steps)
    if way.channel is Channel.STORE:
        answers_ns = _ns(costs.answer_s) * np.arange(1, workers + 1)  # one worker after another
        back_ns = answers_ns + _ns(costs.pull.transfer_s(profile.parameter_bytes) + costs.wake_up_s)
        meeting_ns = _ns(costs.push.transfer_s(profile.parameter_bytes) + costs.apply_s)
        per_sync = profile.parameter_bytes
    else:
        link = costs.torch if way.channel is Channel.TORCH else costs.collective
        back_ns = np.zeros(workers, dtype=np.int64)
        meeting_ns = _ns(link.transfer_s(ring_bytes(profile)) + costs.wake_up_s + costs.apply_s)
        per_sync = ring_bytes(profile)
    ends, wait_ns = _meet(compute, starts_ns(profile), back_ns, meeting_ns)
    if way.channel is Channel.STORE:  # a worker cannot tell waiting for others from waiting for the server
        wait_ns += int((steps - 1) * (back_ns + meeting_ns).sum())
    return Outline(
        total_ns=int(ends[-1]) - int(starts_ns(profile).min()),
        compute_ns=int(compute.sum()),
        wait_ns=wait_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=steps,
        bytes_each_way=per_sync * workers * steps,
        staleness={0: steps * workers} if way.channel is Channel.STORE else None,
        trace=_everybody(ends, workers),
    )


def local(profile: Profile, way: Local, *, steps: int, seed: int) -> Outline:
    costs, workers = profile.costs, profile.num_workers
    compute = matrix(profile, seed, steps)
    ends_at = [
        step
        for step in range(1, steps + 1)
        if averages_after(step, total=steps, every=way.every, post_local_after=way.post_local_after)
    ]
    begins = np.array([0, *ends_at[:-1]])
    rounds = np.add.reduceat(compute + _ns(costs.apply_s), begins, axis=1)
    meeting_ns = _ns(costs.collective.transfer_s(ring_bytes(profile)) + costs.wake_up_s)
    ends, wait_ns = _meet(rounds, starts_ns(profile), np.zeros(workers, dtype=np.int64), meeting_ns)
    return Outline(
        total_ns=int(ends[-1]) - int(starts_ns(profile).min()),
        compute_ns=int(compute.sum()),
        wait_ns=wait_ns,
        steps=(steps,) * workers,
        samples=steps * profile.global_batch,
        syncs=len(ends_at),
        bytes_each_way=ring_bytes(profile) * workers * len(ends_at),
        trace=_everybody(ends, workers),
    )


def _meet(
    rounds: Nanoseconds, starts: Nanoseconds, back_ns: Nanoseconds, meeting_ns: int
) -> tuple[Nanoseconds, int]:
    """(when each meeting is over, how long all workers waited for the last of them)."""
    since = rounds + back_ns[:, None]  # arrival, counted from the meeting before
    since[:, 0] = rounds[:, 0] + starts
    slowest = since.max(axis=0)
    return np.cumsum(slowest + meeting_ns), int((slowest - since).sum())


def _everybody(ends: Nanoseconds, workers: int) -> Trace:
    return Trace(np.tile(np.arange(workers), len(ends)), np.repeat(ends, workers))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
