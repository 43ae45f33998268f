"""Can nodes and workers of a run at work be cut off, and are they back afterwards, whatever happens?"""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fixtures.waiting import until

from paceline.app.actions import mender
from paceline.app.actions.act import Act
from paceline.app.actions.apart import Apart
from paceline.app.actions.sides import Order, Sides, orders, sides_in, why_not_left
from paceline.app.actions.turn import Turn
from paceline.app.actions.wanted import Deed, Phase, Wanted
from paceline.app.lab.nodes import nodes
from paceline.app.lab.training import Training, training, usual_plan

WORKERS = ("worker-0", "worker-1", "worker-2")


def test_names_become_two_sides() -> None:
    assert sides_in("worker-10, node-2,worker-1,node-1,node-2") == Sides((1, 2), ("worker-1", "worker-10"))
    for wrong in ("", "server-0", "node-1,,worker-0", "node-x", "../worker-0", "node-1;worker-0"):
        assert sides_in(wrong) is None


def test_each_node_is_told_whom_it_does_not_hear() -> None:
    sides = Sides((1,), ("worker-0",))
    assert orders(sides, (1, 2, 3), {"worker-0": 70}) == {
        1: Order((2, 3), (70,), others=True),
        2: Order(pids=(70,)),
        3: Order(pids=(70,)),
    }
    assert orders(Sides((2,)), (1, 2, 3), {}) == {2: Order((1, 3), others=True)}


@pytest.mark.parametrize(
    ("sides", "answering", "why"),
    [
        (Sides((1,)), (1, 2, 3), ""),
        (Sides((1, 2)), (1, 2, 3), "quorum would be lost: 1 of 3"),
        (Sides((1,)), (1, 2), "quorum would be lost"),  # the third is down already
        (Sides(workers=("worker-0",)), (1, 2, 3), ""),
        (Sides(workers=("worker-0", "worker-1")), (1, 2, 3), "1 workers would be left"),
    ],
)
def test_whoever_is_left_must_be_able_to_go_on(sides: Sides, answering: tuple[int, ...], why: str) -> None:
    found = why_not_left(sides, voters=(1, 2, 3), answering=answering, workers=WORKERS, fewest=2)
    assert (why in found) if why else (found == "")


def test_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, theirs, elsewhere = Turn("a"), Turn("a"), Turn("../b")
    assert mine.take(0)
    assert not theirs.take(0)
    assert elsewhere.take(0)
    mine.end()
    assert theirs.take(0)
    for turn in (mine, theirs, elsewhere):
        turn.end()


def act(run_dir: Path, deed: Deed, target: str = "", *, for_s: float = 300, force: bool = False) -> Act:
    wanted = Wanted(id=f"{deed}-{target}", deed=deed, worker=target, for_s=for_s, is_forced=force)
    return Act(run_dir, wanted, lambda _: None)


def steps_in(run_dir: Path, wish: str) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return [(e["action"], e["phase"]) for e in lines if e.get("kind") == "action" and e["id"] == wish]


def let_go(done: Act) -> None:
    for holder in done.holders:
        assert holder.stdin is not None
        holder.stdin.close()  # as when whoever asked is killed
        holder.wait()


def test_a_worker_of_a_live_run_is_left_out_and_comes_back(tmp_path: Path) -> None:
    plan = usual_plan(workers=3, steps=1_000_000)
    with training(plan, tmp_path) as run:
        generation = run.until_in(3, 0)
        alone = act(tmp_path, Deed.PARTITION, "node-1").run()
        assert (alone.phase, "quorum would be lost" in alone.note) == (Phase.REFUSED, True)
        wishes = [act(tmp_path, Deed.PARTITION, worker) for worker in ("worker-1", "worker-2")]
        with ThreadPoolExecutor(len(wishes)) as at_once:
            lasts = list(at_once.map(Act.run, wishes))
        ends = {wish.wanted.worker: last for wish, last in zip(wishes, lasts, strict=True)}
        refused = next(last for last in ends.values() if last.phase is Phase.REFUSED)
        assert "already" in refused.note
        done = next(wish for wish in wishes if ends[wish.wanted.worker] is not refused)
        last, who = ends[done.wanted.worker], done.wanted.worker
        assert last.phase is Phase.EFFECT_SEEN, last
        assert f"without {who}" in last.note
        left_out = run.until_in(2, generation)
        let_go(done)
        run.until_in(3, left_out)
        assert steps_in(tmp_path, f"partition-{who}") == [
            *((("partition", phase)) for phase in ("requested", "accepted", "applied", "effect_seen")),
            ("heal", "applied"),
        ]
        with Apart.of(tmp_path) as apart:
            apart.cut(Sides((1,)), {}, 0.5)  # and nobody is left who wanted it
            assert not mender.end(tmp_path)
            until(apart.is_whole, "the node hears everybody again, by itself")
        _is_going_on(run)
        run.finish(30, early=True)


def test_a_leader_of_a_live_run_is_cut_off_and_healed_by_hand(tmp_path: Path) -> None:
    plan = usual_plan(workers=2, steps=1_000_000)
    with (
        nodes(tmp_path / "coordinators", 3) as cluster,
        training(plan, tmp_path / "run", cluster.place) as run,
    ):
        run.until_in(2, 0)
        leader = cluster.leader()
        two = ",".join(f"node-{node}" for node in (leader, cluster.others(leader)[0]))
        assert "2 are needed" in act(run.run_dir, Deed.PARTITION, two).run().note
        done = act(run.run_dir, Deed.PARTITION, f"node-{leader}")
        last = done.run()
        assert last.phase is Phase.EFFECT_SEEN, last
        assert f"node-{leader} hears none of the others" in last.note
        assert "noted it as entry" in (run.run_dir / "events.jsonl").read_text()
        assert cluster.status(leader).cut_ms > 0
        done.holders[0].send_signal(signal.SIGKILL)  # nobody mends it now but the nodes, in five minutes
        healed = act(run.run_dir, Deed.HEAL).run()
        assert healed.phase is Phase.EFFECT_SEEN, healed
        let_go(done)
        until(lambda: cluster.is_up_to_date(leader), "it follows the new leader")
        _is_going_on(run)
        run.finish(30, early=True)


def _is_going_on(run: Training) -> None:
    def done() -> int:
        return max((row.position for rows in run.live().steps.values() for row in rows), default=-1)

    before = done()
    run.until(lambda _: done() > before, "it goes on")
