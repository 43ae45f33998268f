"""Which experiments are there? One row each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.app.lab import freeze_worker, kill_leader, kill_two, kill_worker
from paceline.app.lab import quorum_lost as quorum
from paceline.app.lab import resize as resizing
from paceline.app.lab import slow_worker as slow
from paceline.app.lab.expect import Expectation

Body = Callable[[Path, int, Callable[[str], None]], list[Expectation]]


@dataclass(frozen=True, slots=True)
class Scenario:
    what: str
    body: Body
    times: int  # how often the fault strikes, unless said otherwise


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
}
