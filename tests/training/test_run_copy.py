"""The copy of a run folder: whole at every moment, behind but not lost without the store, and fenced."""

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.fixtures.waiting import until

from paceline.checkpoints.catalog import Checkpoint, folder_at
from paceline.checkpoints.snapshot import Snapshot, write_snapshot
from paceline.cli.main import run as run_command
from paceline.core.disk import write_durably
from paceline.core.errors import DamagedRecordError, ExitCode, NoCheckpointError
from paceline.events.log import write_header
from paceline.faults.actions.executor import ActionExecutor
from paceline.faults.actions.request import ActionKind, ActionRequest, Phase
from paceline.plan.codec import COPY, dumps, plan_hash
from paceline.plan.plan import Plan
from paceline.storage.objects import FolderObjects
from paceline.storage.run_store import FencedError, RunStore
from paceline.training.resume import newest_checkpoint
from paceline.training.run import load_resumable
from paceline.training.run_copy import RunCopier
from paceline.training.run_mirror import Contents, RunMirror
from paceline.training.run_sessions import RunHeldError, fetch_run, require_silence
from paceline.training.session import Session

SOON_S = 0.02


@dataclass
class Run:
    """A run folder whose log gets a line for each step, and its copy."""

    folder: Path
    url: str
    objects: FolderObjects | None = None
    notes: list[str] = field(default_factory=list)
    copier: RunCopier = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        store = RunStore(self.url, self.objects)
        self.copier = RunCopier(self.plan, self.folder, store, self.notes.append, copy_s=SOON_S)

    @property
    def plan(self) -> Plan:
        return Plan(
            run="r",
            task="xor",
            mode="ssgd",
            num_workers=1,
            steps=9,
            batch_sizes=(1,),
            checkpoint_store=self.url,
        )

    def begin(self) -> "Run":
        self.copier.begin()
        for name in (COPY, "plan.json"):
            write_durably(self.folder / name, [dumps(self.plan).encode()])
        write_header(self.log, run="r", plan=plan_hash(self.plan), t0_ns=1, started_unix_s=1.0)
        return self

    @property
    def log(self) -> Path:
        return self.folder / "events.jsonl"

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{text}\n")

    def step(self, number: int, *, is_saved: bool = False) -> None:
        self.write(f"step {number}")
        if is_saved:
            facts = {"clock": number, "at": number, "optimizer": None, "strategy": None}
            folder = folder_at(self.folder / "checkpoints", number)
            write_snapshot(folder, "worker-0", Snapshot({"w": torch.full((50,), float(number))}, facts))
            self.copier.on_checkpoint({"ev": "checkpoint", "path": "", "removed": ""})

    def resume(self) -> Checkpoint:
        checkpoint = newest_checkpoint(self.plan, self.folder)
        assert checkpoint is not None
        self.copier.resume(checkpoint)
        return checkpoint

    def copied(self) -> list[str]:
        """The lines of the copy behind the header."""
        return copied(self.url)


def copied(url: str) -> list[str]:
    return b"".join(RunStore(url).read_log(0)).decode().splitlines()[1:]


def fetched(url: str, folder: Path) -> Run:
    """The run on another machine."""
    folder.mkdir()
    fetch_run(RunStore(url), folder)
    return Run(folder, url)


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "volume").mkdir()
    return f"file://{tmp_path}/volume/run"


class CheckedFolder(FolderObjects):
    """Calls `check` whenever an object was written or removed, before another one is."""

    def __init__(self, folder: Path, check: Callable[[], None]) -> None:
        super().__init__(folder)
        self._check = check
        self._changing = threading.Lock()

    def write(self, name: str, data: bytes | Path) -> None:
        with self._changing:
            super().write(name, data)
            self._check()

    def delete(self, name: str) -> None:
        with self._changing:
            super().delete(name)
            self._check()


def test_what_the_store_holds_is_a_run_folder_at_every_moment(tmp_path: Path, url: str) -> None:
    """A checkpoint that counts never is ahead of the log, and the result comes last."""
    seen: list[tuple[list[int], bool]] = []

    def check() -> None:
        store = RunStore(url)
        lines = copied(url) if store.log_end() else []
        counted = list(store.checkpoints())
        for number, checkpoints in store.checkpoints().items():
            assert f"step {number}" in lines
            checkpoints.download(number, tmp_path / "fetched")
        has_result = store.result() is not None
        assert not has_result or lines[-1] == "the end"
        seen.append((counted, has_result))

    run = Run(tmp_path / "here", url, CheckedFolder(tmp_path / "volume/run", check)).begin()
    with run.copier.running():
        for number in range(1, 13):
            run.step(number, is_saved=number % 3 == 0)
            until(lambda number=number: f"step {number}" in run.copied(), "the line is there")  # type: ignore[misc]
        run.write("the end")
        (run.folder / "result.json").write_text("{}")
    assert run.notes == []
    assert run.copied() == [*(f"step {number}" for number in range(1, 13)), "the end"]
    assert seen[-1][1]
    assert 12 in seen[-1][0]
    assert len(seen[-1][0]) <= run.plan.keep_checkpoints


class SlowUpload(FolderObjects):
    """The thread that keeps checkpoints is interrupted in its first file, while another may upload, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.uploaded: list[str] = []
        self.has_begun = threading.Event()
        self._is_by_another = threading.Event()

    def write(self, name: str, data: bytes | Path) -> None:
        if "/at-" in name:
            self.uploaded.append(name)
            if threading.current_thread() is threading.main_thread():
                self._is_by_another.set()
            else:
                self.has_begun.set()
                self._is_by_another.wait(0.2)
        super().write(name, data)


def test_when_a_run_fails_its_last_checkpoint_is_uploaded_by_one_thread(tmp_path: Path, url: str) -> None:
    """Another thread would first remove what this one has uploaded, and the process may end meanwhile."""
    objects = SlowUpload(tmp_path / "volume/run")
    run = Run(tmp_path / "here", url, objects).begin()
    with suppress(KeyboardInterrupt), run.copier.running():
        run.step(1, is_saved=True)
        until(objects.has_begun.is_set, "the upload has begun")
        raise KeyboardInterrupt
    assert len(objects.uploaded) == len(set(objects.uploaded)), objects.uploaded
    assert list(RunStore(url).checkpoints()) == [1]


def test_without_the_store_a_run_goes_on_and_the_copy_catches_up(tmp_path: Path, url: str) -> None:
    run = Run(tmp_path / "here", url).begin()
    with run.copier.running():
        run.step(1)
        until(lambda: run.copied() == ["step 1"], "the first line is there")
        (tmp_path / "volume").rename(tmp_path / "elsewhere")
        run.step(2, is_saved=True)
        until(lambda: len(run.notes) == 1, "the outage is reported")
        run.step(3)
        assert not (tmp_path / "volume").exists(), "nothing was written where the volume is mounted"
        (tmp_path / "elsewhere").rename(tmp_path / "volume")
        until(lambda: run.copied() == ["step 1", "step 2", "step 3"], "the copy has caught up")
        until(lambda: len(run.notes) == 2, "that is reported")
        run.copier.check()
    assert list(RunStore(url).checkpoints()) == [2]
    assert "behind" in run.notes[0]
    assert "caught up" in run.notes[1]


def test_a_command_that_was_replaced_is_stopped_and_what_it_writes_is_never_read(
    tmp_path: Path, url: str
) -> None:
    old = Run(tmp_path / "old", url).begin()
    old.step(1, is_saved=True)
    with old.copier.running():
        until(lambda: list(RunStore(url).checkpoints()) == [1], "the checkpoint is there")
        new = fetched(url, tmp_path / "new")
        assert new.resume().version == 1
        old.step(2, is_saved=True)
        until(lambda: has_raised(old.copier.check), "the old command is fenced")
        with new.copier.running():
            new.step(3, is_saved=True)
        old.step(4, is_saved=True)
    assert copied(url) == ["step 1", "step 3"]
    assert list(RunStore(url).checkpoints()) == [1, 3]
    with pytest.raises(FencedError):
        old.resume()  # its folder is not the run any more
    assert fetched(url, tmp_path / "third").resume().version == 3


def has_raised(check: Callable[[], None], kind: type[Exception] = FencedError) -> bool:
    try:
        check()
    except kind:
        return True
    return False


class OneFault(FolderObjects):
    """The first object with this text in its name fails in a way that no store does."""

    def __init__(self, folder: Path, text: str) -> None:
        super().__init__(folder)
        self._text = text

    def write(self, name: str, data: bytes | Path) -> None:
        if self._text and self._text in name:
            self._text = ""
            raise LookupError(name)
        super().write(name, data)


@pytest.mark.parametrize("text", ["/events/", "/at-"])
def test_a_fault_that_ends_a_thread_of_the_copy_ends_the_run(tmp_path: Path, url: str, text: str) -> None:
    run = Run(tmp_path / "here", url, OneFault(tmp_path / "volume/run", text)).begin()
    run.step(1)
    with run.copier.running():
        until(lambda: text == "/at-" or bool(run.notes), "the log cannot be copied")
        run.step(2, is_saved=True)
        until(lambda: has_raised(run.copier.check, LookupError), "the fault is raised")
        until(lambda: bool(run.notes), "and reported")
    assert "has ended: LookupError" in run.notes[0]
    assert run.copied() == ["step 1", "step 2"], "the end of the run copies the rest"


def test_a_message_without_a_new_checkpoint_does_not_end_an_outage(tmp_path: Path, url: str) -> None:
    run = Run(tmp_path / "here", url).begin()
    removed: list[int] = []
    with run.copier.running(), run.copier.reporting_removals(removed.append):
        run.step(1, is_saved=True)
        until(lambda: list(RunStore(url).checkpoints()) == [1], "the checkpoint is there")
        (tmp_path / "volume").rename(tmp_path / "elsewhere")
        run.step(2)
        until(lambda: len(run.notes) == 1, "the outage is reported")
        for number in (1, 2):  # when the second one is handled, the first one has been
            run.copier.on_checkpoint({"ev": "checkpoint", "path": "", "removed": str(number)})
            until(partial(removed.__contains__, number), "the message is handled")
        assert len(run.notes) == 1, run.notes
        (tmp_path / "elsewhere").rename(tmp_path / "volume")
        until(lambda: len(run.notes) == 2, "the copy has caught up")


def test_without_the_store_a_folder_is_resumed_and_its_session_begins_when_it_is_back(
    tmp_path: Path, url: str
) -> None:
    run = Run(tmp_path / "here", url).begin()
    run.step(1, is_saved=True)
    with run.copier.running():
        pass
    (tmp_path / "volume").rename(tmp_path / "elsewhere")
    again = Run(tmp_path / "here", url)
    again.resume()
    with again.copier.running():
        again.step(2)
        until(lambda: bool(again.notes), "the outage is reported")
        (tmp_path / "elsewhere").rename(tmp_path / "volume")
        until(lambda: copied(url) == ["step 1", "step 2"], "the copy has caught up")
    assert [session.resumed_at for session in RunStore(url).sessions()] == [None, 1]


def test_a_run_that_was_lost_before_its_first_checkpoint_is_refused(tmp_path: Path, url: str) -> None:
    run = Run(tmp_path / "here", url).begin()
    with run.copier.running():
        run.step(1)
    there = fetched(url, tmp_path / "there")
    with pytest.raises(NoCheckpointError, match=f"{there.folder} nor {url} .* before its first one"):
        load_resumable(there.folder)


def test_a_mirror_follows_the_run_through_another_session(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old = Run(tmp_path / "old", url).begin()
    old.step(1, is_saved=True)
    with old.copier.running():
        until(lambda: list(RunStore(url).checkpoints()) == [1], "the checkpoint is there")
        taken = fetched(url, tmp_path / "new")
        old.step(2)
        until(lambda: copied(url) == ["step 1", "step 2"], "a line behind what the new command took is there")
        mirror = RunMirror(url)
        mirror.update(Contents.RECORD)
        assert (mirror.folder / "events.jsonl").read_bytes() == old.log.read_bytes()
        assert not (mirror.folder / "checkpoints").exists()
        taken.resume()
    with taken.copier.running():
        taken.step(3, is_saved=True)
    for _ in range(2):
        mirror.update(Contents.ALL)
        assert (mirror.folder / "events.jsonl").read_bytes() == taken.log.read_bytes()
        assert sorted(path.name for path in (mirror.folder / "checkpoints").iterdir()) == [
            "at-00000001",
            "at-00000003",
        ]
    shutil.rmtree(tmp_path / "volume/run")
    other = Run(tmp_path / "other", url).begin()
    with other.copier.running():
        other.step(7)
    RunMirror(url).update(Contents.ALL)
    assert (mirror.folder / "events.jsonl").read_bytes() == other.log.read_bytes()
    assert not (mirror.folder / "checkpoints").exists()


def test_a_run_that_is_still_written_is_not_taken_over_without_a_coordinator(
    tmp_path: Path, url: str
) -> None:
    run = Run(tmp_path / "here", url).begin()
    said: list[str] = []
    with run.copier.running():
        run.step(1)
        until(lambda: run.copied() == ["step 1"], "the first line is there")

        def note(text: str) -> None:
            said.append(text)
            run.step(2)

        with pytest.raises(RunHeldError):
            require_silence(RunStore(url), note, silent_s=60)
        run.write('{"kind":"run_finished"}')
    require_silence(RunStore(url), said.append)
    assert len(said) == 1


def test_files_that_nfs_leaves_in_a_store_are_not_part_of_the_log(tmp_path: Path, url: str) -> None:
    run = Run(tmp_path / "here", url).begin()
    with run.copier.running():
        run.step(1)
        until(lambda: run.copied() == ["step 1"], "the line is there")
        (tmp_path / "volume/run/session-000001/events/.nfs0000000001").write_text("of another time")
        run.step(2)
        until(lambda: run.copied() == ["step 1", "step 2"], "the copy goes on")


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "..", ""])
def test_a_plan_in_a_store_cannot_name_a_folder_outside(tmp_path: Path, url: str, name: str) -> None:
    run = Run(tmp_path / "here", url).begin()
    with run.copier.running():
        write_durably(run.folder / "plan.json", [dumps(replace(run.plan, run=name)).encode()])
    with pytest.raises(DamagedRecordError):
        RunMirror(url)


@pytest.mark.parametrize("command", [["stop"], ["checkpoint", "now"], ["workers", "kill"]])
def test_a_command_that_changes_a_run_refuses_its_copy(
    command: list[str], tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes in the log of the copy are those of another machine."""
    copied_run = Run(tmp_path / "here", url).begin()
    with copied_run.copier.running():
        copied_run.step(1)
    worker = ["worker-0"] if command[0] == "workers" else []
    assert run_command([*command, url, *worker], Session(folder=tmp_path)) == ExitCode.TRAINING_FAILED
    assert "E301" in capsys.readouterr().err


def test_an_action_on_a_mirror_is_refused_and_changes_nothing(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the dashboard of a store: it has the mirror's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(tmp_path / "here", url).begin()
    with run.copier.running():
        run.step(1)
    mirror = RunMirror(url)
    mirror.update(Contents.RECORD)
    before = (mirror.folder / "events.jsonl").read_bytes()
    request = ActionRequest(
        id="1",
        kind=ActionKind.STOP,
        worker="",
        factor=1.0,
        for_s=1.0,
        is_forced=False,
        by="u",
        source="ui",
    )
    assert ActionExecutor(mirror.folder, request, lambda _: None).run().phase is Phase.REFUSED
    assert (mirror.folder / "events.jsonl").read_bytes() == before
