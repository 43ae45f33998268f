"""The embedded node behaves as any node does, and leaves nothing behind when it is closed."""

import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.coordinator.admin.serve import EMBEDDED_FOLDER, EMBEDDED_NODE, EmbeddedNode
from paceline.coordinator.client.aio import RefusedError, UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.raft.types import Entry, EntryKind, HardState, Index, Membership, Term
from paceline.coordinator.server.security import client_access
from paceline.coordinator.server.storage import Storage, StorageError
from paceline.core.clock import unix_now_s
from paceline.training.session import Session

THREAD = "paceline-coordinator"


def create(node: EmbeddedNode, name: str) -> pb.Run:
    return node.client.write("Runs.Create", pb.CreateRun(run=name, min_workers=1), pb.Run)


def names(client: BlockingClient) -> list[str]:
    return [run.run for run in client.read("Runs.List", pb.ListRuns(), pb.RunList).runs]


def test_what_was_written_is_there_the_next_time(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        with EmbeddedNode(tmp_path, patience_s=30) as node:
            create(node, f"run-{count}")
            assert names(node.client) == [f"run-{n}" for n in range(1, count + 1)]
            status = node.client.of_node(node.address, "Status", pb.StatusRequest())
            assert (status.role, status.leader_address) == ("leader", node.address)
            assert (status.elections, status.proposals_failed) == (1, 0)
            assert sum(status.commit_timings.counts) > 0, "it was measured how long the command took"
            assert sum(status.fsync_timings.counts) > 0
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def test_others_on_this_machine_can_talk_to_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    with EmbeddedNode(tmp_path, patience_s=30) as node:
        access = client_access(token_file=tmp_path / "coordinator" / "tokens.json")
        with BlockingClient([node.address], access, patience_s=30) as other:
            create(node, "shared")
            assert names(other) == ["shared"]
        assert run(["coordinator", "status", "--dir", "coordinator"], Session(folder=tmp_path)) == 0
        first, *_ = capsys.readouterr().out.splitlines()
        wording(first)
    assert run(["coordinator", "status", "--dir", "coordinator"], Session(folder=tmp_path)) == 3


def test_many_threads_may_write_at_once(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path, patience_s=30) as node, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: create(node, f"run-{number}").run, range(40)))
        assert sorted(names(node.client)) == sorted(made)


@pytest.mark.parametrize("skew_s", [3_600, -3_600])
def test_workers_can_join_whatever_the_clock_of_an_earlier_leader_was(tmp_path: Path, skew_s: int) -> None:
    """The log of a leader whose calendar clock was wrong by an hour, or was set since."""
    folder = tmp_path / EMBEDDED_FOLDER / f"node-{EMBEDDED_NODE}"
    storage = Storage(folder, EMBEDDED_NODE)
    storage.load(Membership(frozenset({EMBEDDED_NODE})))
    creating = pb.CreateRun(run="r", min_workers=1, max_workers=3, want_workers=1)
    command = pb.Command(create_run=creating, at_ms=int((unix_now_s() + skew_s) * 1000))
    entry = Entry(Index(1), Term(1), EntryKind.COMMAND, command.SerializeToString())
    storage.save(HardState(Term(1), None), [entry])
    storage.close()
    with EmbeddedNode(tmp_path, patience_s=30) as node:

        def members() -> list[str]:
            view = node.client.read("Runs.Get", pb.GetRun(run="r"), pb.RunView)
            return list(view.generation.workers)

        for count, name in enumerate(("a", "b"), start=1):  # b comes to a generation that is at work
            node.client.write("Members.Join", pb.JoinRun(run="r", worker=name), pb.Worker)
            until(lambda count=count: len(members()) == count, f"{name} takes part", within_s=60)  # type: ignore[misc]  # bound in the loop


@contextmanager
def a_disk_that_takes_no_more(node: EmbeddedNode) -> Iterator[Callable[[], None]]:
    """No file of this process may grow beyond the log's size: the write fails as on a full or broken disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(path.stat().st_size for path in (node.folder / "node-1").glob("wal-*.log"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_disk_refuses_is_reported_and_the_node_comes_back(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path, patience_s=60) as node:
        create(node, "before")
        news: list[str] = []
        before = set((node.folder / "node-1").glob("wal-*.log"))

        def is_told(text: str) -> bool:
            news.extend(node.take_messages())
            return any(text in reported for reported in news)

        with a_disk_that_takes_no_more(node) as allow_all, ThreadPoolExecutor(1) as pool:
            during = pool.submit(create, node, "during")
            until(lambda: is_told("failed"), "the failure is reported")
            assert str(node.folder / "node-1") in news[0]
            assert "EFBIG" in news[0]
            allow_all()
            assert during.result().run == "during"  # the caller does not even notice
        until(lambda: is_told("has recovered"), "it works again")
        assert before.isdisjoint((node.folder / "node-1").glob("wal-*.log")), "the log is written again"
        create(node, "after")
        assert names(node.client) == ["before", "during", "after"]
    with EmbeddedNode(tmp_path, patience_s=60) as node:
        assert names(node.client) == ["before", "during", "after"]


def test_a_refusal_comes_as_an_error_with_a_hint(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path, patience_s=30) as node:
        with pytest.raises(RefusedError) as refusal:
            node.client.read("Runs.Get", pb.GetRun(run="nope"), pb.RunView)
        assert refusal.value.why == "NOT_FOUND"
        assert refusal.value.hint


def test_a_folder_is_used_by_one_node_at_a_time(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path, patience_s=30) as node:
        with pytest.raises(StorageError):
            EmbeddedNode(tmp_path)
        create(node, "still-works")
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def test_a_client_gives_up_when_no_node_answers(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path, patience_s=30) as node:
        address, token = node.address, tmp_path / "coordinator" / "tokens.json"
    with (
        BlockingClient([address], client_access(token_file=token), patience_s=0.2) as client,
        pytest.raises(UnreachableError),
    ):
        client.find_leader()


def test_torch_is_not_imported() -> None:
    probe = "import sys, paceline.coordinator.admin.serve; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
