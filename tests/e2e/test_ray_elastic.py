"""Elastic runs on Ray continue, in the same processes, when an actor or a node is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.ray_cluster import OnRay, cluster, lose_node, on_ray, result_of, trained
from tests.fixtures.waiting import is_running, kill, until

from paceline.events.read import PlainEvent, read_history
from paceline.launchers.ray.local_cluster import LocalCluster

# Without a last step: it trains until it is stopped, however long Ray takes to replace an actor.
ENDLESS = ("--task", "xor", "--elastic", "--num-workers", "2", "--steps", "1000000", "--pace", "20ms")
WITHIN_S = 120.0  # Ray notices a lost node in seconds; a replacement then imports torch

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster(tmp_path_factory.mktemp("ray"), nodes=2, cpus=2, has_jobs=False) as local_cluster:
        yield local_cluster


def _entered(run: OnRay) -> list[PlainEvent]:
    if not (run.run_dir / "events.jsonl").exists():
        return []
    return [e for e in read_history(run.run_dir / "events.jsonl").plain if e.kind == "generation_entered"]


def _until_both_train(run: OnRay, after: int = 0) -> int:
    """In a generation behind `after`; its number."""

    def newest() -> int:
        assert run.process.poll() is None, f"it ended early: {run.process.communicate()}"
        numbers = [
            int(str(e.fields["number"]))
            for e in _entered(run)
            if "," in str(e.fields["workers"]) and int(str(e.fields["number"])) > after
        ]
        return max((n for n in numbers if numbers.count(n) == 2), default=0)

    until(lambda: newest() > 0, f"both train in a generation behind {after}", within_s=WITHIN_S)
    return newest()


def _stopped(run: OnRay) -> None:
    run.interrupt()
    result = run.end()
    assert result.code == 130, result.err


def test_an_actor_that_dies_and_one_whose_node_is_lost_are_replaced_and_the_others_continue(
    ray: LocalCluster, tmp_path: Path
) -> None:
    where = ("--address", ray.address, "--placement", "spread", "--checkpoint-every", "10")
    with on_ray(tmp_path / "run", *where, *ENDLESS) as run:
        first = _until_both_train(run)
        pids = {who: run.pid_of(who) for who in ("worker-0", "worker-1")}
        far = set(ray.nodes[1].pids())
        (lost,) = (who for who, pid in pids.items() if pid in far)
        (stays,) = set(pids) - {lost}
        kill(pids[lost])
        second = _until_both_train(run, first)
        assert run.pid_of(lost) != pids[lost]
        until(lambda: _has(run, "checkpoint"), "there is something to heal from", within_s=WITHIN_S)
        lose_node(1, ray)  # with the replacement, which had taken the lost one's place
        _until_both_train(run, second)
        processes = [run.pid_of(who) for who in pids]
        assert run.pid_of(stays) == pids[stays]  # it trained on, in the same process
        assert stays in {e.fields["healed_from"] for e in _entered(run)}  # from memory
        _stopped(run)
        until(lambda: not any(is_running(pid) for pid in processes), "no actor is left", within_s=60)
    assert result_of(tmp_path / "run")["launcher"] == "ray"
    assert_nothing_was_lost(tmp_path / "run")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "who"),
    [
        ("localsgd", "worker-1"),
        ("asgd", "worker-1"),
        ("asgd", "server-0-a"),
        ("ddp", "worker-1"),
        ("fsdp", "worker-1"),
    ],
)
def test_other_modes_continue_too_on_their_own_ray(mode: str, who: str, tmp_path: Path) -> None:
    with on_ray(tmp_path / "run", "--mode", mode, "--checkpoint-every", "50", *ENDLESS) as run:
        until(lambda: _has(run, "checkpoint"), "a checkpoint", within_s=WITHIN_S)
        until(lambda: _has(run, "worker_started", who), f"{who} is there", within_s=WITHIN_S)
        before = run.pid_of(who)
        kill(before)
        until(lambda: run.pid_of(who) != before, "it is replaced", within_s=WITHIN_S)
        _stopped(run)
    if mode in ("ddp", "fsdp"):  # who sums in which order depends on who lives: there is nothing to replay
        assert paceline("verify", str(tmp_path / "run"), "--json").data()["holds"] is True
    else:
        assert_nothing_was_lost(tmp_path / "run")


def _has(run: OnRay, kind: str, who: str = "") -> bool:
    path = run.run_dir / "events.jsonl"
    return path.exists() and any(e.kind == kind and who in ("", e.who) for e in read_history(path).plain)


@pytest.mark.soak
def test_an_undisturbed_elastic_run_ends_as_without_ray(tmp_path: Path) -> None:
    args = ("--task", "xor", "--elastic", "--num-workers", "2", "--steps", "10")
    there, here = trained(tmp_path / "there", *args, "--launcher", "ray"), trained(tmp_path / "here", *args)
    assert (there.code, here.code) == (0, 0), there.err + here.err
    assert result_of(tmp_path / "there")["state_sha256"] == result_of(tmp_path / "here")["state_sha256"]
