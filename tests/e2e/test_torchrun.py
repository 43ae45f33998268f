"""A run under torchrun does what the same run does under the local launcher."""

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.fixtures.processes.command import paceline
from tests.fixtures.processes.warm_command import warm_paceline
from tests.fixtures.processes.warm_helpers import THREADS, warm_helpers
from tests.fixtures.runs.torchrun import (
    QUICK,
    WORKER,
    Started,
    free_port,
    python,
    starting,
    torchrun,
    until_checkpoint,
)
from tests.fixtures.waiting import descendants, kill, until_gone

from paceline.checkpoints.catalog import folders, newest_complete, verified
from paceline.core.errors import RunFolderError
from paceline.events.read import read_history
from paceline.launchers.local import LocalLauncher
from paceline.plan.codec import read

LONG = ("--task", "xor", "--steps", "200", "--pace", "20ms", "--checkpoint-every", "10", "--run-dir", "run")


SAME = {
    "ssgd": ("--mode", "ssgd", "--task", "digits", "--steps", "20"),
    "ddp, epochs": (
        *("--mode", "ddp", "--task", "digits", "--epochs", "0.5", "--scale-lr", "linear"),
        *("--evaluate-every", "10"),
    ),
    "early stop": (
        *("--mode", "ssgd", "--task", "tests.fixtures.tasks.user_tasks:RisingTask", "--steps", "60"),
        *("--evaluate-every", "3", "--early-stop-patience", "2"),
    ),
}


@pytest.mark.parametrize("description", SAME)
def test_two_processes_of_torchrun_end_with_the_bits_of_two_paceline_workers(
    description: str, launcher: LocalLauncher, tmp_path: Path
) -> None:
    args = (*SAME[description], "--run-dir", "run", "--json")
    result = torchrun(*args, folder=_made(tmp_path / "theirs"))
    assert result.code == 0, result.err
    theirs = result.data()["result"]  # rank 0 alone prints, or this would be no JSON
    train = ("train", *args, "--transport", "gloo")
    ours = warm_paceline(launcher, *train, folder=_made(tmp_path / "ours")).data()["result"]
    assert theirs["state_sha256"] == ours["state_sha256"]
    assert set(theirs["state_sha256"]) == {"worker-0", "worker-1"}
    for key in ("metrics", "gradients", "samples", "steps", "loss", "bytes", "best", "stopped_early"):
        assert theirs[key] == ours[key], key
    assert theirs.get("stopped_by") == ours.get("stopped_by")
    assert _evaluated(theirs) == _evaluated(ours)
    assert bool(theirs["evaluations"]) == (description != "ssgd")
    assert (theirs["launcher"], read(tmp_path / "theirs/run/plan.json").transport) == ("torchrun", "gloo")
    _leave_the_same_record(tmp_path / "theirs" / "run", tmp_path / "ours" / "run")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _evaluated(result: dict[str, Any]) -> list[Any]:  # Any: JSON
    return [
        (evaluation["step"], evaluation["samples"], evaluation["metrics"])
        for evaluation in result["evaluations"]
    ]


def _leave_the_same_record(theirs: Path, ours: Path) -> None:
    (mine,), (other,) = folders(theirs / "checkpoints"), folders(ours / "checkpoints")
    assert mine.name == other.name
    for who in ("worker-0", "worker-1"):
        assert verified(mine, who).tensors == verified(other, who).tensors
        assert verified(mine, who).facts["clock"] == verified(other, who).facts["clock"]
    events, others = read_history(theirs / "events.jsonl"), read_history(ours / "events.jsonl")
    for rank in (0, 1):
        assert [r.position for r in events.steps[rank]] == [r.position for r in others.steps[rank]]
        assert [r.loss for r in events.steps[rank]] == [r.loss for r in others.steps[rank]]
    assert (theirs / "result.json").exists()


def test_two_processes_are_one_process_with_the_same_global_batch_after_an_epoch(tmp_path: Path) -> None:
    epoch = ("--task", "digits", "--epochs", "1", "--dtype", "float32")
    two = torchrun(*epoch, "--mode", "ddp", "--batch-size", "16", "--run-dir", "two", folder=tmp_path)
    assert two.code == 0, two.err
    one = (*WORKER, *epoch, "--mode", "single", "--batch-size", "32", "--run-dir", "one")
    result = python(*one, folder=tmp_path, variables=THREADS, program=warm_helpers().python)
    assert result.code == 0, result.err
    weights = [
        load_file(folders(tmp_path / run / "checkpoints")[-1] / "worker-0.safetensors")
        for run in ("two", "one")
    ]
    assert set(weights[0]) == set(weights[1])
    for name, tensor in weights[0].items():
        assert float((tensor - weights[1][name]).abs().max()) < 1e-5, name


QUICK_MODES = {"asgd": (), "diloco": ("--sync-every", "4")}
ALL_MODES = {
    "ps": (),
    "backup": (),
    "ssp": (),
    "dssp": (),
    "easgd": (),
    "localsgd": ("--compress", "int8"),
    "fedavg": ("--clients-per-round", "0.5"),
    "onebit": ("--optimizer", "adam"),
    "gossip": (),
    "adaptive": (),
    "ssgd": ("--compress", "topk:0.1"),
}


@pytest.mark.parametrize("mode", QUICK_MODES)
def test_a_mode_runs_under_torchrun(mode: str, tmp_path: Path) -> None:
    _runs(mode, QUICK_MODES[mode], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ALL_MODES)
def test_every_other_mode_runs_under_torchrun(mode: str, tmp_path: Path) -> None:
    _runs(mode, ALL_MODES[mode], tmp_path)


def _runs(mode: str, flags: tuple[str, ...], folder: Path) -> None:
    outcome = torchrun(
        *("--task", "xor", "--mode", mode, "--steps", "12", "--checkpoint-every", "4", *flags, *QUICK),
        *("--run-dir", "run", "--json"),
        folder=folder,
    )
    assert outcome.code == 0, outcome.err
    result = outcome.data()["result"]
    assert (result["gradients"], result["num_workers"]) == (24, 2)
    assert newest_complete(folder / "run" / "checkpoints", 2) is not None
    if mode != "easgd":  # whose server counts exchanges, not gradients
        proved = paceline("verify", str(folder / "run"), "--json")
        assert proved.code == 0, proved.out


def _two_hosts(stack: ExitStack, folder: Path, *args: str) -> list[Started]:
    """Two torchruns that share nothing but the network: each has its own folder."""
    port = free_port()
    started = []
    for node in (0, 1):
        (folder / f"host-{node}").mkdir(exist_ok=True)
        where = ("--nnodes=2", f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}")
        started.append(
            stack.enter_context(
                starting(
                    *(*where, "--nproc_per_node=1", *WORKER, *args),
                    folder=folder / f"host-{node}",
                    GLOO_SOCKET_IFNAME="lo",
                )
            )
        )
    return started


@pytest.mark.soak  # two launches of two agents each
def test_on_two_hosts_without_a_shared_disk_only_rank_0_has_a_folder_and_can_resume(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    # Momentum is each worker's own here, so their snapshots differ.
    flags = ("--mode", "localsgd", "--sync-every", "4", "--optimizer", "momentum", "--lr", "0.05")
    with ExitStack() as stack:
        hosts = _two_hosts(stack, tmp_path, *LONG, *flags, *QUICK)
        until_checkpoint(tmp_path / "host-0" / "run", hosts[0])
        processes = [pid for host in hosts for pid in [host.process.pid, *host.ranks()]]
        hosts[0].process.send_signal(signal.SIGTERM)
        for host in hosts:
            host.end()
        until_gone(processes)
    stopped = json.loads((tmp_path / "host-0" / "run" / "result.json").read_text())
    assert stopped["stopped_early"] is True
    assert list((tmp_path / "host-1").iterdir()) == []
    with ExitStack() as stack:
        hosts = _two_hosts(stack, tmp_path, "--resume", "run")
        for host in hosts:
            result = host.end()
            assert result.code == 0, result.err
    assert list((tmp_path / "host-1").iterdir()) == []
    plain = [arg for arg in LONG if arg not in ("--pace", "20ms")]
    train = ("train", *plain, *flags, "--transport", "gloo", "--json")
    ours = warm_paceline(launcher, *train, folder=tmp_path)
    resumed = json.loads((tmp_path / "host-0" / "run" / "result.json").read_text())
    assert resumed["state_sha256"] == ours.data()["result"]["state_sha256"]
    assert resumed["gradients"] == 400
    assert paceline("verify", str(tmp_path / "host-0" / "run")).code == 0


def test_a_signal_stops_all_ranks_in_order_and_auto_resumes_to_the_end(tmp_path: Path) -> None:
    run = ("--standalone", "--nproc_per_node=2", *WORKER, *LONG, "--mode", "ssgd", *QUICK)
    with starting(*run, folder=tmp_path) as started:
        until_checkpoint(tmp_path / "run", started)
        processes = [started.process.pid, *started.ranks()]
        assert len(processes) == 3
        started.process.send_signal(signal.SIGINT)
        outcome = started.end()
        until_gone(processes)
    assert "checkpoint" in outcome.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["stopped_early"] is True
    checkpoint = newest_complete(tmp_path / "run" / "checkpoints", 2)
    assert checkpoint is not None
    assert checkpoint.clocks == (result["steps"], result["steps"])
    other = torchrun(*LONG, "--mode", "ssgd", "--seed", "7", *QUICK, "--resume", "auto", folder=tmp_path)
    assert other.code != 0
    assert f"error[{RunFolderError.code}]" in other.err
    outcome = torchrun(*LONG, "--mode", "ssgd", *QUICK, "--resume", "auto", "--json", folder=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (outcome.data()["result"]["gradients"], outcome.data()["result"]["stopped_early"]) == (400, False)
    assert paceline("replay", "run", folder=tmp_path).code == 0


def test_when_a_rank_dies_torchrun_restarts_all_and_they_resume_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    run = ("--standalone", "--nproc_per_node=2", "--max_restarts=1", *WORKER, *LONG, *QUICK)
    with starting(*run, folder=tmp_path) as started:
        until_checkpoint(tmp_path / "run", started)
        ranks = started.ranks()
        kill(ranks[1])
        outcome = started.end()
        until_gone([started.process.pid, *ranks])
    assert outcome.code == 0, outcome.err
    assert "(restart 1)" in outcome.err
    assert " at-" in outcome.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["gradients"], result["stopped_early"]) == (400, False)
    assert paceline("verify", "run", folder=tmp_path).code == 0


def test_when_torchrun_itself_is_killed_nothing_is_left(tmp_path: Path) -> None:
    run = ("--standalone", "--nproc_per_node=2", *WORKER, *LONG, "--mode", "asgd", *QUICK)
    with starting(*run, folder=tmp_path) as started:
        # The parameter server is a process of rank 0's, and alone saves.
        until_checkpoint(tmp_path / "run", started, parts=1)
        processes = [started.process.pid, *descendants(started.process.pid)]
        # torchrun, the server, and two ranks, each with the process that separates its warnings
        assert len(processes) == 6
        kill(started.process.pid)
        until_gone(processes)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("FailsOnRankOne", "worker-1: ZeroDivisionError: "),
        ("MissingOnRankOne", "worker-1: FileNotFoundError: "),
        ("ShortOnRankOne", "rank 0 has 12 "),
    ],
)
def test_an_error_of_rank_1_alone_is_reported_once_by_rank_0(task: str, words: str, tmp_path: Path) -> None:
    run = ("--task", f"tests.fixtures.tasks.user_tasks:{task}", "--steps", "3", "--run-dir", "run", *QUICK)
    result = torchrun(*run, folder=tmp_path)
    assert result.code != 0
    error, hint = (line for line in result.err.splitlines() if line.startswith(("error[", "  fix:")))
    assert words in error
    if words.startswith("worker-1: "):
        assert hint.endswith(f" {tmp_path}/run/logs/worker-1.log")
        assert "Traceback" in (tmp_path / "run" / "logs" / "worker-1.log").read_text()
