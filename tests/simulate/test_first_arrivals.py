"""The fast path of full rounds equals the simulation round by round."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulate.backup_workers import BackupRounds, first_arrivals
from paceline.simulate.profile import FREE, Costs, Link, Profile, Recorded

COSTLY = Costs(
    push=Link(latency_s=5e-4, bytes_per_s=1e6),
    pull=Link(latency_s=3e-4),
    apply_s=2e-3,
    answer_s=1e-3,
    wake_up_s=1e-3,
    turn_s=1e-3,
)
# Few different times, so that many gradients arrive in the same nanosecond.
TIMES_MS = st.lists(st.integers(1, 4), min_size=5, max_size=9)


@settings(deadline=None)
@given(
    times_ms=st.lists(TIMES_MS, min_size=1, max_size=6),
    late_ms=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    spare=st.integers(0, 5),
    costs=st.sampled_from([FREE, COSTLY]),
    steps=st.integers(1, 14),
)
def test_full_rounds_are_what_happens_round_by_round(
    times_ms: list[list[int]], late_ms: list[int], spare: int, costs: Costs, steps: int
) -> None:
    workers = len(times_ms)
    profile = Profile(
        num_workers=workers,
        step_times=tuple(Recorded(tuple(ms / 1e3 for ms in own)) for own in times_ms),
        batch_sizes=(1,) * workers,
        starts_at_s=tuple(ms / 1e3 for ms in late_ms[:workers]),
        parameter_bytes=1000,
        costs=costs,
        processors=2,
    )
    spare = min(spare, workers - 1)
    outline = first_arrivals(profile, spare=spare, steps=steps, seed=0)
    one_by_one = BackupRounds(profile, spare, steps, 0)
    while not one_by_one.is_over():
        one_by_one.run_one()
    expected = one_by_one.state
    assert outline.trace.ranks.tolist() == expected.ranks
    assert outline.trace.at_ns.tolist() == np.repeat(expected.at_ns, expected.counted).tolist()
    assert outline.compute_ns == expected.compute_ns
    assert outline.compute_ns + outline.wait_ns == sum(one_by_one.ended_ns) - sum(late_ms[:workers]) * 10**6
    assert outline.abandoned == expected.abandoned
    assert outline.steps == tuple(expected.clocks)
    assert sum(outline.steps) == steps * workers


def test_a_run_without_late_workers_consists_of_full_rounds_but_for_its_ends() -> None:
    profile = Profile(
        num_workers=4, step_times=(Recorded((0.01, 0.02, 0.01)),) * 4, batch_sizes=(1,) * 4, costs=FREE
    )
    rounds = BackupRounds(profile, 1, 90, 0)
    rounds.run_one()
    rounds.run_full()
    assert len(rounds.state.at_ns) == 1 + (90 * 4 - 3 - 4) // 3
    late = BackupRounds(replace(profile, starts_at_s=(0.0, 0.0, 0.0, 0.9)), 1, 90, 0)
    late.run_one()
    late.run_full()
    assert len(late.state.at_ns) == 1
