"""A plan on Ray actors ends as without Ray, and continues when a node is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost, paceline
from tests.fixtures.runs.ray_cluster import XOR, cluster, kinds, lose_node, on_ray, result_of, trained
from tests.fixtures.waiting import descendants, is_running, kill, until

from paceline.events.read import read_history
from paceline.launchers.ray.local_cluster import LocalCluster, start_cluster

BASIC = ("single", "ssgd", "ddp", "ps", "asgd", "ssp", "localsgd", "diloco")
SAME = ("ssgd", "localsgd", "ps")  # synchronous: chance has no say in them
SLOW = ("--steps", "100000", "--pace", "5ms", "--checkpoint-every", "20")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One for all tests here: Ray takes its time to start."""
    state = tmp_path_factory.mktemp("ray")
    with cluster(state, nodes=2, cpus=3) as local_cluster:
        assert start_cluster(state, nodes=2, cpus=3, has_dashboard=True) == (local_cluster, False)
        yield local_cluster


def _of(mode: str) -> list[str]:
    workers = [] if mode == "single" else ["--num-workers", "2"]
    return ["--task", "xor", "--mode", mode, *workers, "--steps", "10"]


def test_every_basic_mode_trains_on_ray_and_synchronous_ones_end_as_without(
    ray: LocalCluster, tmp_path: Path
) -> None:
    def train(mode: str) -> None:
        outcome = trained(tmp_path / mode, *_of(mode), "--launcher", "ray", "--address", ray.address)
        assert outcome.code == 0, f"{mode}: {outcome.err}"

    def train_here(mode: str) -> None:
        transport = "tcp" if mode == "ps" else "gloo"
        outcome = trained(tmp_path / f"here-{mode}", *_of(mode), "--transport", transport)
        assert outcome.code == 0, f"{mode}: {outcome.err}"

    with ThreadPoolExecutor(3) as pool:  # a run mostly waits for processes to start
        list(
            pool.map(
                lambda job: job[0](job[1]), [(train, m) for m in BASIC] + [(train_here, m) for m in SAME]
            )
        )
    for mode in BASIC:
        result = result_of(tmp_path / mode)
        assert result["launcher"] == "ray"
        assert result["stopped_early"] is False
        assert kinds(tmp_path / mode).count("worker_finished") == len(result["state_sha256"]) + (
            2 if mode in ("ps", "asgd", "ssp") else 0
        )
    for mode in SAME:
        here, there = result_of(tmp_path / f"here-{mode}"), result_of(tmp_path / mode)
        assert there["state_sha256"] == here["state_sha256"], mode
        assert there["metrics"] == here["metrics"], mode


@pytest.mark.soak
def test_a_llama_that_is_split_ends_as_without_ray(ray: LocalCluster, tmp_path: Path) -> None:
    words = ("--task", "llama", "--mode", "fsdp", "--num-workers", "2", "--max-steps", "6", "--seq-len", "32")
    on = {"here": (), "there": ("--launcher", "ray", "--address", ray.address)}
    for name, more in on.items():
        result = trained(tmp_path / name, *words, *more)
        assert result.code == 0, result.err
    here, there = result_of(tmp_path / "here"), result_of(tmp_path / "there")
    assert there["state_sha256"] == here["state_sha256"]
    assert there["metrics"] == here["metrics"]


@pytest.mark.soak
def test_a_cluster_is_reached_by_its_client_too(ray: LocalCluster, tmp_path: Path) -> None:
    """On a busy machine the process that Ray starts for a client may come too late for Ray."""
    result = trained(tmp_path / "run", *_of("ssgd"), "--launcher", "ray", "--address", ray.client)
    assert result.code == 0, result.err


@pytest.mark.soak  # Ray's own job server starts a driver of its own
def test_a_job_is_submitted_followed_and_listed(ray: LocalCluster, tmp_path: Path) -> None:
    where = ("--dashboard", ray.dashboard)
    folder = tmp_path / "mine"
    document = paceline("ray", "submit", *_of("ssgd"), "--run-dir", str(folder), *where, "--json").data()
    assert document["status"] in ("pending", "running")
    followed = paceline("ray", "logs", "--follow", document["id"], *where)
    assert followed.code == 0, followed.out + followed.err
    assert f"in {folder}" in followed.out
    assert result_of(folder)["launcher"] == "ray"
    assert paceline("ray", "status", document["id"], *where, "--json").data()["status"] == "succeeded"
    # Only then: two at once are four processes that import torch, on two cores that test other things too.
    second = paceline(
        "ray", "submit", *XOR, *SLOW, "--run-dir", str(tmp_path / "two"), *where, "--json"
    ).data()
    assert paceline("ray", "stop", second["id"], *where).code == 0
    listed = paceline("ray", "list", *where, "--json").data()["jobs"]
    assert [job["id"] for job in listed] == [document["id"], second["id"]]
    unknown = paceline("ray", "status", "missing-run", *where)
    assert (unknown.code, " missing-run" in unknown.err) == (5, True)


def test_a_cluster_that_is_too_small_is_reported_before_anything_starts(
    ray: LocalCluster, tmp_path: Path
) -> None:
    args = ("--launcher", "ray", "--address", ray.address, "--num-workers", "7")
    result = trained(tmp_path / "run", *args)
    assert result.code == 4
    assert "too small" in result.err
    assert "worker-6" in result.err
    assert not (tmp_path / "run").exists()


def test_a_comparison_finds_a_cluster_too_small_before_its_first_run(
    ray: LocalCluster, tmp_path: Path
) -> None:
    args = ("--launcher", "ray", "--address", ray.address, "--num-workers", "7", "--modes", "ssgd")
    result = paceline("compare", *XOR[:2], *args, "--steps", "5", "--out", str(tmp_path / "out"))
    assert result.code == 4, result.err
    assert "too small" in result.err
    assert not list((tmp_path / "out" / "runs").glob("*/events.jsonl"))  # also the one that would fit


def test_a_lost_worker_ends_the_run_with_a_clear_message_and_a_lost_node_does_not_with_restarts(
    ray: LocalCluster, tmp_path: Path
) -> None:
    """The last one here: the cluster has one node less afterwards."""
    to = ("--address", ray.address, *XOR)
    with on_ray(tmp_path / "one", *to, *SLOW) as run:
        run.until_checkpoint(2)
        kill(run.pid_of("worker-1"))
        result = run.end()
        assert result.code == 5, result.err
        assert "worker-1" in result.err
        assert "was lost" in result.err
        assert "--resume" in result.err
    two = tmp_path / "two"
    with on_ray(two, *to, *SLOW, "--placement", "spread", "--restarts", "2") as run:
        run.until_checkpoint(2)
        lose_node(1, ray)
        until(lambda: _was_restarted(two), "all are started again, and train")
        run.interrupt()
        result = run.end()
        assert result.code == 130, result.err
    assert result_of(two)["launcher"] == "ray"
    happened = kinds(two)
    assert happened.count("worker_lost") == happened.count("run_resumed") == 1
    assert_nothing_was_lost(two)


def _was_restarted(run_dir: Path) -> bool:
    happened = [event.kind for event in read_history(run_dir / "events.jsonl").plain]
    return "run_resumed" in happened and "checkpoint" in happened[happened.index("run_resumed") :]


def test_ctrl_c_stops_in_order_and_a_ray_of_our_own_ends_with_the_run(tmp_path: Path) -> None:
    with on_ray(tmp_path / "run", *XOR, "--mode", "asgd", *SLOW) as run:
        run.until_checkpoint(1)
        seen = list(descendants(run.process.pid))
        assert len(seen) > 3
        run.interrupt()
        result = run.end()
        assert result.code == 130, result.err
        until(lambda: not any(is_running(pid) for pid in seen), "all of Ray has ended")
    assert result_of(tmp_path / "run")["stopped_early"] is True
    assert list((tmp_path / "run" / "checkpoints").glob("at-*/server-0.json"))
