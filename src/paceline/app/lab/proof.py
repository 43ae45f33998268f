"""What must hold after every scenario: nothing lost, nothing twice, the bits of an undisturbed run."""

from collections.abc import Mapping
from pathlib import Path

from paceline.app.lab.expect import Expectation, exactly
from paceline.app.lab.ticking import Telling
from paceline.app.replay import replay_run
from paceline.app.verify import verify_run
from paceline.events.read import History
from paceline.plan.codec import Json

NOTHING_LOST = "nothing is lost or done twice"


def proofs(run_dir: Path, history: History, say: Telling | None = None) -> list[Expectation]:
    say = say or Telling()
    found = [Expectation(f.what, "holds", f.seen, f.ok) for f in verify_run(run_dir)]
    say.settled(found)
    kept = sum(one.ok for one in found)
    whole = Expectation(NOTHING_LOST, "all", f"{kept} of {len(found)} proofs", kept == len(found))
    say.settled([whole])  # the short word for what was just said
    verdict = replay_run(run_dir, lambda *_: None)
    same = say.settled([_same(verdict)])
    return [*found, *same, *say.settled([exactly("processes left behind", _living(history), 0)])]


def _same(verdict: Mapping[str, Json]) -> Expectation:
    return Expectation(
        "the parameters are those of an undisturbed run (behind servers: of the recorded order)",
        "equal bit by bit",
        str(verdict["parted"] or "equal bit by bit"),
        bool(verdict["is_equal"]),
    )


def _living(history: History) -> int:
    pids = [int(str(e.fields["pid"])) for e in history.plain if e.kind == "worker_started"]
    return sum("paceline" in _command(pid) for pid in pids)


def _command(pid: int) -> str:
    """Empty when there is no such process."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""
