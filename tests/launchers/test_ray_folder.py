"""The launcher writes a run folder for actors as if they had written it themselves."""

import errno
import json
import os
from pathlib import Path

import torch
from safetensors.torch import save
from tests.fixtures.runs.plans import small_plan
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import unpack_checkpoint
from paceline.checkpoints.snapshot import from_bytes, read_snapshot
from paceline.events.log import write_header
from paceline.launchers.local import Message
from paceline.launchers.ray.group import RunDirWriter
from paceline.worker.entry.ray import Outbox

TENSORS = save({"w": torch.arange(3.0)})


def _image(at: int, who: str, number: int = 0) -> Message:
    return {
        "ev": "image",
        "at": at,
        "who": who,
        "facts": {"clock": at, "at": at},
        "number": number,
        "blob": 0,
    }


def test_snapshots_are_written_whole_and_old_ones_go(tmp_path: Path) -> None:
    folder = RunDirWriter(small_plan("ssgd"), tmp_path)
    for at in (1, 2, 3, 4):
        folder.image(_image(at, "worker-0"), TENSORS)
        answer = folder.image(_image(at, "worker-1", number=7), TENSORS)
    assert answer["number"] == 7
    assert answer["failure"] == ""
    assert answer["removed"] == [1]
    snapshot = read_snapshot(tmp_path / "checkpoints" / "at-00000004", "worker-1")
    assert snapshot.facts == {"clock": 4, "at": 4}
    assert torch.equal(snapshot.tensors["w"], torch.arange(3.0))


def test_what_cannot_be_written_is_answered_and_not_raised(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("no folder")
    answer = RunDirWriter(small_plan("ssgd"), tmp_path).image(_image(1, "worker-0"), TENSORS)
    assert any(os.strerror(code) in str(answer["failure"]) for code in (errno.ENOTDIR, errno.EEXIST))


def test_a_loss_rolls_back_to_the_newest_complete_checkpoint_and_is_reported(tmp_path: Path) -> None:
    plan = small_plan("ssgd")
    folder = RunDirWriter(plan, tmp_path)
    write_header(tmp_path / "events.jsonl", run="r", plan="p", t0_ns=0, started_unix_s=0.0)
    assert folder.go_back("worker-1: gone") is None
    for who in ("worker-0", "worker-1"):
        folder.image(_image(5, who), TENSORS)
    folder.image(_image(10, "worker-0"), TENSORS)  # the other one was lost before
    checkpoint = folder.go_back("worker-1: gone")
    assert checkpoint is not None
    assert checkpoint.folder.name == "at-00000005"
    assert not (tmp_path / "checkpoints" / "at-00000010").exists()
    lost, resumed = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()[-2:])
    assert (lost["kind"], lost["cause"]) == ("worker_lost", "worker-1: gone")
    assert (resumed["kind"], resumed["clocks"]) == ("run_resumed", "5,5")
    assert from_bytes(folder.saved(checkpoint.folder, "worker-1")).facts == {"clock": 5, "at": 5}


def test_an_actor_s_question_waits_for_its_answer_and_lines_travel_before_it() -> None:
    outbox = Outbox()
    outbox.lines.append(b"{}\n")
    outbox.say({"ev": "note", "text": "hello"})
    text, blobs = outbox.take("[]")
    assert (text["events"], text["said"], text["over"], blobs) == (
        "{}\n",
        [{"ev": "note", "text": "hello"}],
        False,
        [],
    )
    outbox.take(json.dumps([{"number": 0, "failure": ""}]))
    assert outbox.ask({"ev": "image"}, b"123", timeout_s=1.0) == {"number": 0, "failure": ""}
    text, blobs = outbox.take("[]")
    assert blobs == [b"123"]
    outbox.end()
    assert outbox.take("[]")[0]["over"] is True


def test_parts_of_a_state_travel_all_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    folder = RunDirWriter(small_plan("fsdp"), tmp_path)
    for who in ("worker-0", "worker-1"):
        folder.image(_image(5, who), TENSORS)
    (tmp_path / "checkpoints" / "at-00000005" / "worker-2.draft").write_text("unfinished")
    with unpack_checkpoint(folder.saved(tmp_path / "checkpoints" / "at-00000005", "worker-1")) as there:
        assert sorted(file.name for file in there.iterdir()) == [
            "worker-0.json",
            "worker-0.safetensors",
            "worker-1.json",
            "worker-1.safetensors",
        ]
        assert torch.equal(read_snapshot(there, "worker-0").tensors["w"], torch.arange(3.0))
    assert not there.exists()


def test_only_files_of_a_checkpoint_are_taken_out_of_a_piece(wording: Wording) -> None:
    names = json.dumps([["../x.json", 0]]).encode()
    with (
        wording.raises(ValueError),
        unpack_checkpoint(len(names).to_bytes(8, "little") + names),
    ):
        pass
