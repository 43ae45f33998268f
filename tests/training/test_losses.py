"""Lost workers: reported to the coordinator without waiting for an answer; its silence is noted once."""

import threading
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message
from tests.fixtures.waiting import until
from tests.fixtures.wording import Wording

from paceline.coordinator.admin.serve import EmbeddedNode
from paceline.coordinator.client.aio import UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.training.elastic import LostWorkerReporter

Reply = TypeVar("Reply", bound=Message)


class Silent:
    """A coordinator without a majority: every question takes long, and is then not answered."""

    def __init__(self) -> None:
        self.gives_up = threading.Event()
        self.asked = 0

    def read(self, name: str, request: Message, reply: type[Reply]) -> Reply:
        self.asked += 1
        self.gives_up.wait()
        raise UnreachableError("no node answers", "start them again")

    write = read


def test_a_silent_coordinator_blocks_nothing_and_is_reported_once(wording: Wording) -> None:
    client, notes = Silent(), list[str]()
    losses = LostWorkerReporter(client, "r", notes.append)
    losses.report("worker-0", 1, "killed")  # returns, although there was no answer
    losses.report("worker-1", 2, "killed")
    until(lambda: client.asked == 1, "the first is being told")
    client.gives_up.set()
    until(lambda: client.asked == 2, "so is the second")
    losses.close()
    (note,) = notes
    assert "worker-0" in note
    wording(note)


def test_the_process_that_is_gone_leaves_and_its_successor_stays(tmp_path: Path) -> None:
    with EmbeddedNode(tmp_path) as node:
        creating = pb.CreateRun(run="r", min_workers=1, max_workers=4, want_workers=1)
        node.client.write("Runs.Create", creating, pb.Run)
        joining = pb.JoinRun(run="r", worker="worker-0", role="worker", facts={"pid": "7"})
        node.client.write("Members.Join", joining, pb.Worker)
        losses = LostWorkerReporter(node.client, "r", lambda _: None)

        def living() -> list[str]:
            listed = node.client.read("Members.List", pb.ListWorkers(run="r"), pb.WorkerList)
            return [w.worker for w in listed.workers if w.phase != pb.WORKER_LEFT]

        losses.report("worker-0", 6, "one before it was killed")
        losses.report("worker-0", 7, "killed")
        until(lambda: not living(), "it has left")
        losses.close()
