"""Checkpoints of a run in an S3-compatible store: a part of one does not count, and damage is detected."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.aws.s3_server import BUCKET, empty_bucket, s3_server
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import DAMAGED, folder_at, verified
from paceline.checkpoints.snapshot import Snapshot, write_snapshot
from paceline.core.errors import PacelineError
from paceline.plan.plan import Plan
from paceline.storage.checkpoint_store import CheckpointStore
from paceline.storage.objects import S3Objects, StoreError
from paceline.storage.run_store import PART_BYTES, FencedError, LogWriter, RunStore
from paceline.training.run_copy import RunCopier

pytest.importorskip("boto3", reason="the object store is NOT tested: pip install 'moto[server]' boto3")
pytest.importorskip("moto.server", reason="the object store is NOT tested: pip install 'moto[server]'")

URL = f"s3://{BUCKET}/team/first"
PLAN = Plan(run="r", task="xor", mode="ssgd", num_workers=1, steps=9, batch_sizes=(1,), checkpoint_store=URL)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as result:
        yield result


@pytest.fixture
def client(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # Any: boto3's
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with empty_bucket(BUCKET) as s3:
        yield s3


def keys(client: Any) -> list[str]:  # Any: boto3's
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def checkpoints() -> tuple[RunStore, CheckpointStore]:
    """A store with the first session of a run, and the checkpoints of that session."""
    store = RunStore(URL)
    return store, store.checkpoints_of(store.begin("first"))


def write(root: Path, number: int) -> Path:
    folder = folder_at(root, number)
    facts = {"clock": number, "at": number, "optimizer": None, "strategy": None}
    write_snapshot(folder, "worker-0", Snapshot({"w": torch.full((50,), float(number))}, facts))
    return folder


def test_a_checkpoint_goes_there_and_comes_back_as_it_was(client: Any, tmp_path: Path) -> None:
    _, store = checkpoints()
    folder = write(tmp_path / "here", 5)
    store.upload(folder)
    again = store.download(5, tmp_path / "there")
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert keys(client)[:-1] == [f"team/first/session-000001/at-00000005/{n}" for n in _names()]


def _names() -> list[str]:
    return ["manifest.json", "worker-0.json", "worker-0.safetensors"]


def test_without_its_manifest_a_checkpoint_does_not_exist(client: Any, tmp_path: Path) -> None:
    run, store = checkpoints()
    store.upload(write(tmp_path / "here", 5))
    store.upload(write(tmp_path / "here", 7))
    client.delete_object(Bucket=BUCKET, Key="team/first/session-000001/at-00000007/manifest.json")
    assert store.numbers() == [5]  # as if the upload was cut off
    assert run.fetch_newest(tmp_path / "there", after=-1) == []
    assert verified(folder_at(tmp_path / "there", 5), "worker-0").facts["at"] == 5


@pytest.mark.parametrize("name", ["manifest.json", "worker-0.json", "worker-0.safetensors"])
@pytest.mark.parametrize("damage", ["a changed byte", "cut short", "missing"])
def test_what_the_store_damaged_is_noticed_and_the_one_before_taken(
    name: str, damage: str, client: Any, tmp_path: Path
) -> None:
    run, store = checkpoints()
    key = f"team/first/session-000001/at-00000007/{name}"
    for number in (5, 7):
        store.upload(write(tmp_path / "here", number))
    data = bytearray(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    if damage == "missing":
        client.delete_object(Bucket=BUCKET, Key=key)
    else:
        data[len(data) // 2] ^= 1
        client.put_object(Bucket=BUCKET, Key=key, Body=bytes(data if damage != "cut short" else data[:-1]))
    passed_over = run.fetch_newest(tmp_path / "there", after=-1)
    no_longer_listed = name == "manifest.json" and damage == "missing"
    assert passed_over == ([] if no_longer_listed else ["at-00000007"])
    assert folder_at(tmp_path / "there", 5).is_dir()
    assert not folder_at(tmp_path / "there", 7).exists()
    with pytest.raises(DAMAGED):
        store.download(7, tmp_path / "there")


def test_a_store_that_does_not_answer_is_reported_once(client: Any, tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "events.jsonl").touch()
    copier = RunCopier(PLAN, tmp_path, RunStore(URL), notes.append)
    copier.begin()
    client.delete_object(Bucket=BUCKET, Key="team/first/session-000001/session.json")
    client.delete_bucket(Bucket=BUCKET)
    with suppress(KeyboardInterrupt), copier.running():
        for number in (1, 2):
            write(tmp_path / "checkpoints", number)
            copier.on_checkpoint({"ev": "checkpoint", "path": "", "removed": ""})
        raise KeyboardInterrupt  # the end of the run is not waited for
    first, *_ = notes
    assert sum(note.startswith("warning: the copy of the run") for note in notes) == 1
    assert "s3://checkpoints/team/first" in first
    with pytest.raises(StoreError) as caught:
        RunStore(URL).sessions()
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    client.create_bucket(Bucket=BUCKET)


@pytest.mark.usefixtures("client")
def test_two_runs_never_share_a_place(wording: Wording) -> None:
    RunStore(URL).begin("one")
    with wording.raises(PacelineError):
        RunStore(URL).begin("another")


@pytest.mark.usefixtures("client")
def test_of_two_commands_that_continue_a_run_one_creates_the_session_and_fences_the_other() -> None:
    first = RunStore(URL)
    session = first.begin("first")
    one, other = RunStore(URL), RunStore(URL)
    assert one.sessions() == other.sessions() == [session]
    second = one.create(log_from=3, resumed_at=None, token="one")
    assert second is not None
    assert other.create(log_from=9, resumed_at=None, token="other") is None
    assert one.create(log_from=3, resumed_at=None, token="one") == second  # a request that was repeated
    assert other.sessions() == [session, second]
    one.check_current(second)
    with pytest.raises(FencedError):
        first.check_current(session)


@pytest.mark.usefixtures("client")
def test_the_log_is_the_parts_of_all_sessions_without_what_a_replaced_command_wrote_later() -> None:
    store = RunStore(URL)
    log = b"".join(b"line %7d of a log that is not small\n" % number for number in range(70_000))
    assert len(log) > 2 * PART_BYTES
    first = LogWriter(store.objects, store.begin("first"), start=0)
    for start in range(0, len(log), 300_000):
        first.append(log[start : start + 300_000])
    assert b"".join(store.read_log(0)) == log
    assert b"".join(store.read_log(PART_BYTES + 7)) == log[PART_BYTES + 7 :]
    assert store.log_end() == len(log)
    cut = len(log) - 50_000
    session = store.create(log_from=cut, resumed_at=None, token="second")
    assert session is not None
    first.append(b"a line that a frozen command wrote when it was fenced\n")
    LogWriter(store.objects, session, start=cut).append(b"another end\n")
    assert b"".join(RunStore(URL).read_log(0)) == log[:cut] + b"another end\n"
    assert b"".join(store.read_log(cut + 4)) == b"her end\n"


def test_without_boto3_the_error_names_what_to_install() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from paceline.storage.run_store import RunStore\n"
        "from paceline.core.errors import NotReadyError\n"
        "try:\n    RunStore('s3://bucket/x')\n"
        "except NotReadyError as error:\n    print(error.what, error.hint)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "boto3" in result.stdout
    assert result.stdout.endswith("pip install 'paceline[s3]'\n")


@contextmanager
def answering(*answers: tuple[int, str]) -> Iterator[tuple[str, list[str]]]:
    """A store that answers one request after the other so: its address, and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:  # called so by http.server
            self.rfile.read(int(self.headers["Content-Length"]))
            status, code = answers[len(asked)]
            asked.append(str(self.headers["If-None-Match"]))
            body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


CONFLICT = (409, "ConditionalRequestConflict")


@pytest.mark.parametrize(
    ("second", "is_created"), [((200, ""), True), ((412, "PreconditionFailed"), False), (CONFLICT, False)]
)
def test_an_object_that_met_another_request_is_created_by_a_second_attempt(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, second: tuple[int, str], is_created: bool
) -> None:
    with answering(CONFLICT, second) as (address, asked):
        for name, value in {**variables, "AWS_ENDPOINT_URL": address}.items():
            monkeypatch.setenv(name, value)
        assert S3Objects(URL).create("session.json", b"{}") == is_created
    assert asked == ["*", "*"]
