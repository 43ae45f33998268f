"""Checkpoints in an S3-compatible store: they survive the loss of the machine, and damage is detected."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.aws.s3_server import BUCKET, empty_bucket, s3_server
from tests.fixtures.processes.command import paceline
from tests.fixtures.wording import Wording

from paceline.checkpoints.catalog import DAMAGED, folder_at, verified
from paceline.checkpoints.snapshot import Snapshot, write_snapshot
from paceline.core.errors import PacelineError
from paceline.plan.plan import Plan
from paceline.storage.checkpoint_store import ObjectStore, StoreError, fetch_newest
from paceline.training.checkpoints import CheckpointUploader

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


def write(root: Path, number: int) -> Path:
    folder = folder_at(root, number)
    facts = {"clock": number, "at": number, "optimizer": None, "strategy": None}
    write_snapshot(folder, "worker-0", Snapshot({"w": torch.full((50,), float(number))}, facts))
    return folder


def test_a_checkpoint_goes_there_and_comes_back_as_it_was(client: Any, tmp_path: Path) -> None:
    store, folder = ObjectStore(URL), write(tmp_path / "here", 5)
    store.upload(folder)
    again = store.download(5, tmp_path / "there")
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert keys(client) == [f"team/first/at-00000005/{n}" for n in _names()]


def _names() -> list[str]:
    return ["manifest.json", "worker-0.json", "worker-0.safetensors"]


def test_without_its_manifest_a_checkpoint_does_not_exist(client: Any, tmp_path: Path) -> None:
    store = ObjectStore(URL)
    store.upload(write(tmp_path / "here", 5))
    store.upload(write(tmp_path / "here", 7))
    client.delete_object(Bucket=BUCKET, Key="team/first/at-00000007/manifest.json")  # as if it was cut off
    assert store.numbers() == [5]
    assert fetch_newest(store, tmp_path / "there", after=-1) == []
    assert verified(folder_at(tmp_path / "there", 5), "worker-0").facts["at"] == 5


@pytest.mark.parametrize("name", ["manifest.json", "worker-0.json", "worker-0.safetensors"])
@pytest.mark.parametrize("damage", ["a changed byte", "cut short", "missing"])
def test_what_the_store_damaged_is_noticed_and_the_one_before_taken(
    name: str, damage: str, client: Any, tmp_path: Path
) -> None:
    store, key = ObjectStore(URL), f"team/first/at-00000007/{name}"
    for number in (5, 7):
        store.upload(write(tmp_path / "here", number))
    data = bytearray(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    if damage == "missing":
        client.delete_object(Bucket=BUCKET, Key=key)
    else:
        data[len(data) // 2] ^= 1
        client.put_object(Bucket=BUCKET, Key=key, Body=bytes(data if damage != "cut short" else data[:-1]))
    passed_over = fetch_newest(store, tmp_path / "there", after=-1)
    no_longer_listed = name == "manifest.json" and damage == "missing"
    assert passed_over == ([] if no_longer_listed else ["at-00000007"])
    assert folder_at(tmp_path / "there", 5).is_dir()
    assert not folder_at(tmp_path / "there", 7).exists()
    with pytest.raises(DAMAGED):
        store.download(7, tmp_path / "there")


@pytest.mark.usefixtures("client")
def test_the_keeper_copies_what_is_new_and_removes_what_is_old(tmp_path: Path) -> None:
    notes: list[str] = []
    keeper = CheckpointUploader(PLAN, tmp_path, ObjectStore(URL), notes.append)
    for number in range(1, 6):
        write(tmp_path / "checkpoints", number)
        keeper.on_checkpoint({"ev": "checkpoint", "path": "", "removed": ""})
    keeper.close(wait=True)
    assert ObjectStore(URL).numbers()[-1] == 5
    assert len(ObjectStore(URL).numbers()) <= PLAN.keep_checkpoints
    assert keeper.uploaded[-1] == "at-00000005"
    assert notes == []


def test_a_store_that_does_not_answer_is_reported_once(client: Any, tmp_path: Path) -> None:
    notes: list[str] = []
    client.delete_bucket(Bucket=BUCKET)
    keeper = CheckpointUploader(PLAN, tmp_path, ObjectStore(URL), notes.append)
    for number in (1, 2):
        write(tmp_path / "checkpoints", number)
        keeper.on_checkpoint({"ev": "checkpoint", "path": "", "removed": ""})
    keeper.close(wait=True)
    assert len(notes) == 1
    assert "s3://checkpoints/team/first" in notes[0]
    with pytest.raises(StoreError) as caught:
        ObjectStore(URL).numbers()
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    client.create_bucket(Bucket=BUCKET)


@pytest.mark.usefixtures("client")
def test_two_runs_never_share_a_place(wording: Wording) -> None:
    ObjectStore(URL).begin("{}")
    with wording.raises(PacelineError):
        ObjectStore(URL).begin("{}")


def test_a_run_is_resumed_on_another_machine_from_the_store_alone(client: Any, tmp_path: Path) -> None:
    settings = ["--task", "xor", "--steps", "60", "--checkpoint-every", "20", "--name", "copied"]
    result = paceline("train", *settings, "--checkpoint-store", URL, "--json", folder=tmp_path)
    assert result.code == 0, result.err + result.out
    expected = result.data()["result"]["state_sha256"]
    assert ObjectStore(URL).numbers()[-1] == 60
    client.delete_object(Bucket=BUCKET, Key="team/first/at-00000060/manifest.json")
    ObjectStore(URL).upload(tmp_path / "runs/copied/checkpoints/at-00000040")
    # The folder is there, but its checkpoints are not.
    shutil.rmtree(tmp_path / "runs/copied/checkpoints")
    again = paceline("train", "--resume", "runs/copied", "--json", folder=tmp_path)
    assert again.code == 0, again.out
    assert again.data()["result"]["state_sha256"] == expected
    # Nothing at all is there.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    client.delete_object(Bucket=BUCKET, Key="team/first/at-00000060/manifest.json")
    again = paceline("train", "--resume", URL, "--json", folder=elsewhere)
    assert again.code == 0, again.out
    assert again.data()["result"]["state_sha256"] == expected
    assert json.loads((elsewhere / "runs/copied/result.json").read_text())["steps"] < 60
    refused = paceline("train", *settings, "--checkpoint-store", URL, folder=elsewhere)
    assert refused.code == 5
    assert URL in refused.err


def test_without_boto3_the_error_names_what_to_install() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from paceline.storage.checkpoint_store import ObjectStore\n"
        "from paceline.core.errors import NotReadyError\n"
        "try:\n    ObjectStore('s3://bucket/x')\n"
        "except NotReadyError as error:\n    print(error.what, error.hint)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "boto3" in result.stdout
    assert result.stdout.endswith("pip install 'paceline[s3]'\n")
