"""Which experiments are there? One row each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.app.lab import (
    bad_lines,
    corrupt_checkpoint,
    freeze_worker,
    full_disk,
    kill_leader,
    kill_server,
    kill_two,
    kill_worker,
    lose_node,
    nan_gradient,
    partition_coordinators,
    partition_workers,
)
from paceline.app.lab import quorum_lost as quorum
from paceline.app.lab import resize as resizing
from paceline.app.lab import slow_worker as slow
from paceline.app.lab.expect import Expectation
from paceline.app.lab.ticking import Telling

Body = Callable[[Path, int, Telling], list[Expectation]]
DOORS = "by TCP proxies of its own in front of the coordinators; needs no root"


@dataclass(frozen=True, slots=True)
class Scenario:
    what: str
    body: Body
    times: int  # how often the fault strikes, unless said otherwise
    how: str = ""  # it is done, where that depends on the machine


SCENARIOS: dict[str, Scenario] = {
    "kill-worker": Scenario(
        "kill -9 of one worker after another", kill_worker.kill_worker, kill_worker.USUAL_TIMES
    ),
    "kill-two": Scenario("kill -9 of two workers at once", kill_two.kill_two, kill_two.USUAL_TIMES),
    "freeze-worker": Scenario(
        "SIGSTOP of a worker, and SIGCONT once it is left out",
        freeze_worker.freeze_worker,
        freeze_worker.USUAL_TIMES,
    ),
    "kill-leader": Scenario(
        "kill -9 of the coordinator's leader, of three nodes",
        kill_leader.kill_leader,
        kill_leader.USUAL_TIMES,
    ),
    "kill-server": Scenario(
        "kill -9 of the primary parameter server", kill_server.kill_server, kill_server.USUAL_TIMES
    ),
    "quorum-lost": Scenario(
        "kill -9 of two of three coordinators, which come back later", quorum.quorum_lost, quorum.USUAL_TIMES
    ),
    "resize": Scenario(
        "2 → 4 → 3 workers, again and again, and kill -9 or SIGSTOP of one in between",
        resizing.resize,
        resizing.USUAL_TIMES,
    ),
    "slow-worker": Scenario(
        "one of five workers gets slower and slower, up to ten times", slow.slow_worker, slow.USUAL_TIMES
    ),
    "partition-workers": Scenario(
        "a worker cannot reach any coordinator",
        partition_workers.partition_workers,
        partition_workers.USUAL_TIMES,
        DOORS,
    ),
    "partition-coordinators": Scenario(
        "the coordinator's leader is cut off with one worker, of three nodes and four workers",
        partition_coordinators.partition_coordinators,
        partition_coordinators.USUAL_TIMES,
        DOORS,
    ),
    "drop-packets": Scenario(
        "connections to and among the coordinators break and stall, a second each time",
        bad_lines.drop_packets,
        bad_lines.USUAL_TIMES,
        DOORS,
    ),
    "delay-packets": Scenario(
        "everything to and among the coordinators is 20 to 60 ms late, a second each time",
        bad_lines.delay_packets,
        bad_lines.USUAL_TIMES,
        DOORS,
    ),
    "full-disk": Scenario(
        "a coordinator's disk is full",
        full_disk.full_disk,
        full_disk.USUAL_TIMES,
        "by a small tmpfs with root, else by a limit on the size of its files",
    ),
    "nan-gradient": Scenario(
        "a shard's gradient is NaN at one step", nan_gradient.nan_gradient, nan_gradient.USUAL_TIMES
    ),
    "corrupt-checkpoint": Scenario(
        "a byte of the newest checkpoint changes before the run is resumed",
        corrupt_checkpoint.corrupt_checkpoint,
        corrupt_checkpoint.USUAL_TIMES,
    ),
    "lose-node-and-rejoin": Scenario(
        "a coordinator node and half the workers are gone at once, and come back",
        lose_node.lose_node,
        lose_node.USUAL_TIMES,
    ),
}
