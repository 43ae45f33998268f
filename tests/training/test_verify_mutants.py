"""`paceline verify` finds a record that was damaged, or that a faulty build wrote, in every mode."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.runs.plans import small_plan

from paceline.core.errors import PacelineError
from paceline.events.read import History, PlainEvent
from paceline.events.schema import StepRow
from paceline.launchers.local import LocalLauncher
from paceline.plan.catalog import MODES
from paceline.plan.plan import Elastic
from paceline.training.verify import verify_run, verify_split
from paceline.training.verify_work import verify_shares

ONLY_WITH_PROCESSES = ("ddp", "fsdp")
STATIC = [name for name in MODES if name not in ONLY_WITH_PROCESSES]
ELASTIC = ["ssgd", "localsgd", "fedavg", "asgd"]
Lines = list[dict[str, object]]
Mutant = Callable[[Lines], Lines | None]  # None: there is nothing to damage in this way


@pytest.fixture(scope="module")
def made(launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole run of every mode, each a folder."""
    folder, result = tmp_path_factory.mktemp("runs"), {}
    for mode in STATIC:
        workers = "1" if mode == "single" else "2"
        adam = ["--optimizer", "adam"] if MODES[mode].optimizers else []
        work = ["--mode", mode, "--num-workers", workers, "--steps", "12", "--launcher", "virtual", *adam]
        result[mode] = run(launcher, folder, mode, work)
    for mode in ELASTIC:
        work = ["--mode", mode, "--num-workers", "2", "--steps", "12", "--elastic"]
        result[f"elastic-{mode}"] = run(launcher, folder, f"elastic-{mode}", work)
    return result


def run(launcher: LocalLauncher, folder: Path, name: str, work: list[str]) -> Path:
    made = warm_paceline(launcher, "train", "--task", "xor", *work, "--run-dir", name, folder=folder)
    assert made.code == 0, made.err
    return folder / name


def holds(run_dir: Path) -> bool:
    try:
        return all(finding.ok for finding in verify_run(run_dir))
    except PacelineError:
        return False  # it cannot be read, and says so


def changed(line: dict[str, object], column: str, change: Callable[[int], int]) -> dict[str, object]:
    """The last row of this line with another value."""
    columns, count = line["columns"], line["rows"]
    assert isinstance(columns, dict)
    assert isinstance(count, int)
    value = columns[column]
    values = list(value) if isinstance(value, list) else [value] * count
    values[-1] = change(values[-1])
    return {**line, "columns": {**columns, column: values}}


def counted(lines: Lines) -> list[int]:
    """The lines that say what was done: a server's, where there is one, else the workers'."""
    kinds = [str(line.get("kind")) for line in lines]
    has_applied = any(
        kind == "server" and "apply" in str(line["columns"]) for kind, line in zip(kinds, lines, strict=True)
    )
    is_exchange = "easgd" in str(lines[0].get("run"))
    kind = "server" if has_applied and not is_exchange else "steps"
    return [
        index
        for index, line in enumerate(lines)
        if line.get("kind") == kind and (kind == "steps" or "apply" in str(line["columns"]))
    ]


def without_its_second_half(lines: Lines) -> Lines:
    return lines[: len(lines) // 2]


def without_its_end(lines: Lines) -> Lines:
    return [line for line in lines if line.get("kind") != "run_finished"]


def without_a_batch(lines: Lines) -> Lines | None:
    if any(line.get("kind") == "server_promoted" for line in lines):
        return None  # on a busy machine a backup took over, and wrote the rows of the primary again
    return [line for index, line in enumerate(lines) if index != counted(lines)[0]]


def with_a_batch_twice(lines: Lines) -> Lines | None:
    if any(line.get("kind") == "server_started" for line in lines):
        return None  # a backup that takes over writes again what its primary wrote: each row counts once
    at = counted(lines)[0]
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]]


def with_a_share_done_twice_and_its_neighbour_never(lines: Lines) -> Lines:
    at = counted(lines)[-1]
    moved = changed(lines[at], "position", lambda position: position - 1)
    return [*lines[:at], moved, *lines[at + 1 :]]


def with_other_samples(lines: Lines) -> Lines | None:
    steps = [index for index, line in enumerate(lines) if line.get("kind") == "steps"]
    at = steps[0]
    return [*lines[:at], changed(lines[at], "samples", lambda samples: samples + 1), *lines[at + 1 :]]


def with_a_sample_moved_to_another_share(lines: Lines) -> Lines | None:
    """All totals stay. Shares of `adaptive` follow the measured speed: only whole steps are planned."""
    steps = [index for index, line in enumerate(lines) if line.get("kind") == "steps"]
    first, last = steps[0], steps[-1]
    if first == last or "adaptive" in str(lines[0].get("run")):
        return None
    moved = [*lines]
    moved[first] = changed(lines[first], "samples", lambda samples: samples + 1)
    moved[last] = changed(lines[last], "samples", lambda samples: samples - 1)
    return moved


def with_a_gradient_that_no_worker_computed(lines: Lines) -> Lines | None:
    """A server applied it, on a version that the worker's row does not name."""
    kinds = {str(line.get("kind")) for line in lines}
    if "server_started" in kinds or lines[counted(lines)[0]].get("kind") != "server":
        return None
    at = next(index for index, line in enumerate(lines) if line.get("kind") == "steps")
    return [*lines[:at], changed(lines[at], "version", lambda version: version + 1000), *lines[at + 1 :]]


def of_another_plan(lines: Lines) -> Lines:
    return [{**line, "plan": "0" * 16} if line.get("kind") == "run_started" else line for line in lines]


MUTANTS: list[Mutant] = [
    without_its_second_half,
    without_its_end,
    without_a_batch,
    with_a_batch_twice,
    with_a_share_done_twice_and_its_neighbour_never,
    with_other_samples,
    with_a_sample_moved_to_another_share,
    with_a_gradient_that_no_worker_computed,
    of_another_plan,
]
RUNS = [*STATIC, *(f"elastic-{mode}" for mode in ELASTIC)]


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_holds(made: dict[str, Path], name: str) -> None:
    findings = verify_run(made[name])
    assert all(finding.ok for finding in findings), findings


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
@pytest.mark.parametrize("name", RUNS)
def test_a_damaged_log_does_not_hold(
    made: dict[str, Path], tmp_path: Path, name: str, mutant: Mutant
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made[name], folder)
    log = folder / "events.jsonl"
    lines = mutant([json.loads(line) for line in log.read_text().splitlines()])
    if lines is None:
        pytest.skip("this mode has nothing of the kind")
    log.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    assert not holds(folder)


def test_a_line_that_cannot_be_read_holds_only_if_it_was_written_again(
    made: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made["ssgd"], folder)
    log = folder / "events.jsonl"
    header, rest = log.read_text().split("\n", 1)
    fragment = '{"kind":"steps","who":"worker-0","rows":4,"col'
    log.write_text("\n".join([header, fragment, rest]))
    assert not holds(folder)
    for dropped, is_whole in ((0, True), (1, False)):
        event = {"kind": "record_interrupted", "who": "worker-0", "at_ns": 1, "reason": "full"}
        again = json.dumps({**event, "fragments": 1, "dropped": dropped}, separators=(",", ":"))
        log.write_text("\n".join([header, fragment, again, rest]))
        assert holds(folder) is is_whole


@pytest.mark.parametrize("number", ["gradients", "samples", "loss"])
def test_a_result_that_is_not_the_logs_does_not_hold(
    made: dict[str, Path], tmp_path: Path, number: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made["ssgd"], folder)
    path = folder / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, number: result[number] * 1.01}))
    assert not holds(folder)


def test_a_plan_that_was_changed_does_not_hold(made: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made["ssgd"], folder)
    path = folder / "plan.json"
    path.write_text(
        path.read_text().replace('"steps": 12', '"steps": 13').replace('"steps":12', '"steps":13')
    )
    assert not holds(folder)


@pytest.mark.parametrize(("committed", "is_excused"), [(11, True), (12, False)])
def test_a_worker_that_lost_its_generation_may_lack_the_row_of_a_step_that_another_committed(
    made: dict[str, Path], tmp_path: Path, committed: int, is_excused: bool
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(made["elastic-ssgd"], folder)
    log = folder / "events.jsonl"
    lines: Lines = [json.loads(line) for line in log.read_text().splitlines()]
    at = next(n for n, line in enumerate(lines) if line.get("kind") == "worker_finished")
    who = lines[at]["who"]
    entered = next(e for e in lines if e.get("kind") == "generation_entered" and e["who"] == who)
    last = max(n for n, line in enumerate(lines) if line.get("kind") == "steps" and line["who"] == who)
    lost = {"kind": "generation_lost", "who": who, "at_ns": lines[at]["at_ns"], "number": entered["number"]}
    lines[last] = without_its_last_row(lines[last])
    lines.insert(at, {**lost, "committed": committed, "why": "the generation ended while waiting"})
    log.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    result = next(finding for finding in verify_run(folder) if "exactly once" in finding.what)
    assert result.ok is is_excused, result


def without_its_last_row(line: dict[str, object]) -> dict[str, object]:
    columns, count = line["columns"], line["rows"]
    assert isinstance(columns, dict)
    assert isinstance(count, int)
    cut = {name: value[:-1] if isinstance(value, list) else value for name, value in columns.items()}
    return {**line, "rows": count - 1, "columns": cut}


def test_each_sample_of_a_split_model_counts_whichever_worker_used_it() -> None:
    plan = small_plan("fsdp", steps=3)
    share = plan.batch_sizes[0]

    def ok(*work: tuple[int, int, int]) -> bool:
        """(rank, step, samples)"""
        history = History()
        empty = StepRow._make([0] * len(StepRow._fields))
        for rank, step, samples in work:
            history.steps.setdefault(rank, []).append(empty._replace(step=step, samples=samples))
        return verify_split(plan, history, is_done=True).ok

    whole = [(rank, step, share) for step in range(3) for rank in range(2)]
    assert ok(*whole)
    assert ok(*whole[:4], (0, 2, 2 * share))  # resumed with one worker
    assert not ok(*whole[:5])
    assert not ok(*whole[:5], whole[4])
    assert not ok(*whole[:5], (1, 2, share - 1))


def test_each_step_of_an_elastic_run_with_whole_batches_has_all_its_samples() -> None:
    """Torch's own modes compute all shards of a worker in one batch, in one row."""
    crew = Elastic(workers=2, min_workers=1, max_workers=2)
    plan = replace(small_plan("ddp", steps=3), elastic=crew)
    share = plan.batch_sizes[0]

    def ok(*work: tuple[int, int, int]) -> bool:
        """(rank, step, samples)"""
        history = History()
        for rank in range(2):
            who = f"worker-{rank}"
            begun = {"number": 1, "committed": 0, "state": "s", "workers": "worker-0,worker-1"}
            history.plain += [PlainEvent("worker_started", who, 0, {})]
            history.plain += [PlainEvent("generation_entered", who, 0, begun)]
            history.plain += [PlainEvent("worker_finished", who, 9, {})]
        history.plain += [PlainEvent("run_finished", "launcher", 10, {"outcome": "finished"})]
        empty = StepRow._make([0] * len(StepRow._fields))
        for rank, step, samples in work:
            row = empty._replace(step=step, position=2 * step + rank, samples=samples, start_ns=1)
            history.steps.setdefault(rank, []).append(row)
        (finding,) = verify_shares(plan, history)
        return finding.ok

    whole = [(rank, step, share) for step in range(3) for rank in range(2)]
    assert ok(*whole)
    assert not ok(*whole[:5])
    assert not ok(*whole, whole[5])
    assert not ok(*whole[:5], (1, 2, share + 1))
