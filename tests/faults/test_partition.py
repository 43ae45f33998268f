"""Nodes and workers of a live run are partitioned, and always healed afterwards."""

import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.faults.actions import partition_healer
from paceline.faults.actions.executor import ActionExecutor
from paceline.faults.actions.partition import NamedLock, NetworkPartition
from paceline.faults.actions.request import (
    ActionKind,
    ActionRequest,
    BlockRule,
    PartitionGroup,
    Phase,
    block_rules,
    parse_group,
    why_too_few_left,
)
from paceline.faults.scenarios.coordinator_nodes import nodes
from paceline.faults.scenarios.training import TrainingRun, default_plan, training

WORKERS = ("worker-0", "worker-1", "worker-2")


def test_names_become_two_sides() -> None:
    assert parse_group("worker-10, node-2,worker-1,node-1,node-2") == PartitionGroup(
        (1, 2), ("worker-1", "worker-10")
    )
    for wrong in ("", "server-0", "node-1,,worker-0", "node-x", "../worker-0", "node-1;worker-0"):
        assert parse_group(wrong) is None


def test_each_node_receives_the_peers_that_it_must_ignore() -> None:
    sides = PartitionGroup((1,), ("worker-0",))
    assert block_rules(sides, (1, 2, 3), {"worker-0": 70}) == {
        1: BlockRule((2, 3), (70,), others=True),
        2: BlockRule(pids=(70,)),
        3: BlockRule(pids=(70,)),
    }
    assert block_rules(PartitionGroup((2,)), (1, 2, 3), {}) == {2: BlockRule((1, 3), others=True)}


@pytest.mark.parametrize(
    ("sides", "answering", "can_go_on"),
    [
        (PartitionGroup((1,)), (1, 2, 3), True),
        (PartitionGroup((1, 2)), (1, 2, 3), False),
        (PartitionGroup((1,)), (1, 2), False),  # the third is down already
        (PartitionGroup(workers=("worker-0",)), (1, 2, 3), True),
        (PartitionGroup(workers=("worker-0", "worker-1")), (1, 2, 3), False),
    ],
)
def test_the_remaining_nodes_must_be_able_to_continue(
    sides: PartitionGroup, answering: tuple[int, ...], can_go_on: bool, wording: Wording
) -> None:
    result = why_too_few_left(sides, voters=(1, 2, 3), answering=answering, workers=WORKERS, min_workers=2)
    assert (result == "") == can_go_on
    if not can_go_on:
        wording(result)


def test_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, theirs, elsewhere = NamedLock("a"), NamedLock("a"), NamedLock("../b")
    assert mine.acquire(0)
    assert not theirs.acquire(0)
    assert elsewhere.acquire(0)
    mine.release()
    assert theirs.acquire(0)
    for turn in (mine, theirs, elsewhere):
        turn.release()


def act(
    run_dir: Path, deed: ActionKind, target: str = "", *, for_s: float = 300, force: bool = False
) -> ActionExecutor:
    action_request = ActionRequest(
        id=f"{deed}-{target}", kind=deed, worker=target, for_s=for_s, is_forced=force
    )
    return ActionExecutor(run_dir, action_request, lambda _: None)


def steps_in(run_dir: Path, action_id: str) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return [(e["action"], e["phase"]) for e in lines if e.get("kind") == "action" and e["id"] == action_id]


def let_go(action_executor: ActionExecutor) -> None:
    for holder in action_executor.holders:
        assert holder.stdin is not None
        holder.stdin.close()  # as when the requesting process is killed
        holder.wait()


def test_a_worker_of_a_live_run_is_left_out_and_comes_back(tmp_path: Path) -> None:
    plan = default_plan(workers=3, steps=1_000_000)
    with training(plan, tmp_path) as run:
        generation = run.until_in(3, 0)
        alone = act(tmp_path, ActionKind.PARTITION, "node-1").run()
        assert alone.phase is Phase.REFUSED
        assert "0 of 1 " in alone.note
        actions = [act(tmp_path, ActionKind.PARTITION, worker) for worker in ("worker-1", "worker-2")]
        with ThreadPoolExecutor(len(actions)) as at_once:
            lasts = list(at_once.map(ActionExecutor.run, actions))
        ends = {action.request.worker: last for action, last in zip(actions, lasts, strict=True)}
        refused = next(last for last in ends.values() if last.phase is Phase.REFUSED)
        assert "already" in refused.note
        action_executor = next(action for action in actions if ends[action.request.worker] is not refused)
        last, who = ends[action_executor.request.worker], action_executor.request.worker
        assert last.phase is Phase.EFFECT_SEEN, last
        assert f"without {who}" in last.note
        left_out = run.until_in(2, generation)
        let_go(action_executor)
        run.until_in(3, left_out)
        assert steps_in(tmp_path, f"partition-{who}") == [
            *((("partition", phase)) for phase in ("requested", "accepted", "applied", "effect_seen")),
            ("heal", "applied"),
        ]
        with NetworkPartition.of(tmp_path) as apart:
            apart.start(PartitionGroup((1,)), {}, 0.5)  # and the requesting process is gone
            assert not partition_healer.end(tmp_path)
            until(apart.is_healed, "the node receives from all peers again, without a request")
        _is_going_on(run)
        run.finish(30, early=True)


def test_a_leader_of_a_live_run_is_cut_off_and_healed_by_hand(tmp_path: Path) -> None:
    plan = default_plan(workers=2, steps=1_000_000)
    with (
        nodes(tmp_path / "coordinators", 3) as cluster,
        training(plan, tmp_path / "run", cluster.coordinators) as run,
    ):
        run.until_in(2, 0)
        leader = cluster.leader()
        two = ",".join(f"node-{node}" for node in (leader, cluster.others(leader)[0]))
        too_many = act(run.run_dir, ActionKind.PARTITION, two).run()
        assert too_many.phase is Phase.REFUSED
        assert "1 of 3 " in too_many.note
        action_executor = act(run.run_dir, ActionKind.PARTITION, f"node-{leader}")
        last = action_executor.run()
        assert last.phase is Phase.EFFECT_SEEN, last
        assert f"node-{leader} " in last.note
        assert re.search(r"entry \d+ ", (run.run_dir / "events.jsonl").read_text())
        assert cluster.status(leader).cut_ms > 0
        action_executor.holders[0].send_signal(signal.SIGKILL)  # only the nodes heal it now, in five minutes
        healed = act(run.run_dir, ActionKind.HEAL).run()
        assert healed.phase is Phase.EFFECT_SEEN, healed
        let_go(action_executor)
        until(lambda: cluster.is_up_to_date(leader), "it follows the new leader")
        _is_going_on(run)
        run.finish(30, early=True)


def _is_going_on(run: TrainingRun) -> None:
    def done() -> int:
        return max((row.position for rows in run.live().steps.values() for row in rows), default=-1)

    before = done()
    run.until(lambda _: done() > before, "it goes on")
