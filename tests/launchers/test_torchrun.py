"""Rank 0's control side turns the ranks' messages into a run's end, and recognises its own runs."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.config.environment import Facts, World
from paceline.core.errors import ConfigError, NotReadyError, TrainingError
from paceline.launchers.local import Message
from paceline.launchers.torchrun import Starter, TorchrunLauncher
from paceline.plan.codec import Json, dumps
from paceline.plan.plan import EventDetail, Plan
from paceline.training.progress import SilentWatcher
from paceline.training.request import Request, claim_run_dir
from paceline.training.resume import find_previous_run
from paceline.training.run import train

PLAN = small_plan("ssgd", events=EventDetail.OFF)
REPORT: Message = {"ev": "report", "steps": 12, "stopped": False, "steps_s": 1.0, "state_sha256": "same"}
LOST: Message = {"ev": "error", "what": "lost a peer", "hint": "-", "exit_code": 5, "secondary": True}


class Ranks:
    """The side that has torch, from a script."""

    def __init__(self, *messages: Message) -> None:
        self._messages = messages
        self.has_stopped = False

    def train(
        self, plan: Plan, run_dir: Path, resume_from: Path | None, tell: Callable[[Message], None]
    ) -> None:
        for number, message in enumerate(self._messages):
            tell({"who": f"worker-{number}", **message})

    def count(self, order: Message) -> Message:
        return self._messages[0]

    def ask_to_stop(self) -> None:
        self.has_stopped = True


def test_what_the_ranks_report_becomes_the_result(tmp_path: Path) -> None:
    ranks = Ranks({**REPORT, "metrics": {"accuracy": 0.5}}, REPORT)
    result = train(PLAN, tmp_path / "run", SilentWatcher(), warm=TorchrunLauncher(World(size=2), ranks))
    assert result["state_sha256"] == {"worker-0": "same", "worker-1": "same"}
    assert result["metrics"] == {"accuracy": 0.5}
    assert (tmp_path / "run" / "started_by.json").exists()


def test_the_rank_that_failed_is_named_and_not_those_that_lost_it(tmp_path: Path, wording: Wording) -> None:
    cause: Message = {**LOST, "what": "cannot count", "secondary": False}
    with wording.raises(TrainingError):
        train(
            PLAN, tmp_path / "run", SilentWatcher(), warm=TorchrunLauncher(World(size=2), Ranks(LOST, cause))
        )


def test_a_stop_request_reaches_the_side_that_trains() -> None:
    ranks = Ranks()
    TorchrunLauncher(World(), ranks).stop()
    assert ranks.has_stopped


def test_the_samples_of_a_task_are_counted_in_the_process_itself(wording: Wording) -> None:
    def counted(answer: Message) -> int:
        launcher = TorchrunLauncher(World(), Ranks(answer))
        return launcher.count_samples("xor", options={}, seed=0, dtype="float32")

    assert counted({"ev": "counted", "num_samples": 7}) == 7
    problems: list[Json] = [{"what": "no data", "hint": "get it"}]
    with wording.raises(ConfigError):
        counted({"ev": "refused", "problems": problems, "exit_code": 3})
    with wording.raises(NotReadyError):
        counted({"ev": "refused", "problems": problems, "exit_code": 4})


def _run(folder: Path, plan: Plan, starter: Starter | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(dumps(plan))
    if starter is not None:
        (folder / "started_by.json").write_text(json.dumps(starter.to_dict()))
    return folder


def _request(folder: Path, *, is_named: bool = False) -> Request:
    first = folder if is_named else folder.with_name("test")
    return Request(plan=PLAN, run_dir=folder, first_dir=first, facts=Facts(), is_named=is_named)


def test_after_a_restart_only_the_run_of_the_same_torchrun_is_gone_on_with(tmp_path: Path) -> None:
    world = World(restarts=1, run_id="job-1")
    new = _request(tmp_path / "runs" / "test-3")
    assert find_previous_run(new, world) is None
    mine = _run(tmp_path / "runs" / "test", PLAN, Starter.of(world))
    _run(tmp_path / "runs" / "test-2", PLAN, Starter("job-2", "1 1"))
    assert find_previous_run(new, world) == mine
    assert find_previous_run(new, World(restarts=1)) == mine  # the same process started it
    assert Starter("job-1", "1 1").is_same(Starter.read(mine))  # the same job, on another host
    assert not Starter("job-3", "1 1").is_same(Starter.read(mine))


def test_auto_resumes_the_newest_run_of_this_name_and_plan(tmp_path: Path, wording: Wording) -> None:
    _run(tmp_path / "runs" / "test", small_plan("ssgd"))
    newest = _run(tmp_path / "runs" / "test-2", PLAN)
    assert find_previous_run(_request(tmp_path / "runs" / "test-3"), World()) == newest
    named = tmp_path / "runs" / "test"
    with wording.raises(ConfigError):
        find_previous_run(_request(named, is_named=True), World())
    assert find_previous_run(_request(tmp_path / "nothing", is_named=True), World()) is None


def test_a_run_that_starts_over_leaves_the_old_folder_alone(tmp_path: Path) -> None:
    assert claim_run_dir(tmp_path / "new", is_named=True) == tmp_path / "new"
    _run(tmp_path / "run", PLAN)
    assert claim_run_dir(tmp_path / "run", is_named=True) == tmp_path / "run-2"
