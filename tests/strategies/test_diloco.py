"""DiLoCo on real processes. (Laws D1-D8 prove what it computes.)"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.runs.run_plans import real, virtual

from paceline.launchers.local import LocalLauncher
from paceline.plan.plan import StrategyOptions, Transport
from paceline.worker.participant import state_hash
from paceline.worker.replay.schedule import replay

PLAIN = StrategyOptions(sync_every=4)
STREAMING = StrategyOptions(sync_every=6, fragments=3, sync_delay=2, mixing=0.25)


@pytest.mark.parametrize("options", [PLAIN, STREAMING], ids=["plain", "streaming"])
@pytest.mark.parametrize("batch_sizes", [(4, 4), (2, 6)], ids=["equal", "unequal"])
def test_a_real_run_ends_with_equal_workers_and_replays(
    options: StrategyOptions, batch_sizes: tuple[int, ...], launcher: LocalLauncher, tmp_path: Path
) -> None:
    plan = small_plan("diloco", steps=27, strategy=options, batch_sizes=batch_sizes)
    plan = replace(plan, task_options={"batch_norm": True})
    run = real(plan, tmp_path / "run", launcher)
    assert replay(plan, run.history, run.sha256).is_equal


def test_shared_memory_and_gloo_end_with_the_same_bits(launcher: LocalLauncher, tmp_path: Path) -> None:
    plan = small_plan("diloco", steps=16, strategy=STREAMING)
    shm = real(plan, tmp_path / "shm", launcher)
    gloo = real(replace(plan, transport=Transport.GLOO), tmp_path / "gloo", launcher)
    assert shm.sha256 == gloo.sha256


def test_a_stop_request_synchronizes_all_fragments() -> None:
    plan = small_plan("diloco", num_workers=3, steps=40, strategy=STREAMING, pace_s=0.01)
    run = virtual(plan, stops_after={1: 5})
    assert {len(rows) for rows in run.history.steps.values()} == {6}
    assert len({state_hash(replica.arena.named_state()) for replica in run.replicas.values()}) == 1


def test_momentum_in_the_outer_optimizer_changes_the_result() -> None:
    without = replace(PLAIN, outer_momentum=0.0)
    one, other = (virtual(small_plan("diloco", strategy=o, steps=12)) for o in (PLAIN, without))
    assert state_hash(one.final_state()) != state_hash(other.final_state())
