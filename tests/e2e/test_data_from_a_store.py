"""A run on data from an object store, over a bad network, ends with the bits of a local one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.aws.s3_server import s3_server
from tests.fixtures.processes.command import paceline
from tests.fixtures.servers.cutting_proxy import cutting_proxy

boto3 = pytest.importorskip("boto3", reason="the store is NOT tested: pip install 'moto[server]' boto3")
pytest.importorskip("moto.server", reason="the store is NOT tested: pip install 'moto[server]'")

URL = "s3://data-sets/text"
SECRET = "hush-hush-4711"
SETTINGS = ["--task", "charlm", "--task-option", "context=16", "--task-option", "width=16", "--steps", "12"]


@pytest.fixture
def store_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with s3_server(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)  # this server takes any
        client = boto3.client("s3")
        client.create_bucket(Bucket="data-sets")
        client.close()
        monkeypatch.setenv("PACELINE_DATA_CACHE", str(tmp_path / "cache"))
        yield int(variables["AWS_ENDPOINT_URL"].rpartition(":")[2])


def test_a_streamed_run_ends_bit_equal_and_continues_after_a_resume(
    store_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = paceline("train", *SETTINGS, "--name", "local", "--json", folder=tmp_path)
    assert local.code == 0, local.out
    expected = local.data()["result"]
    outcome = paceline("data", "shard", "charlm", "--out", URL, "--samples-per-shard", "9000", "--json")
    assert outcome.code == 0, outcome.out
    assert outcome.data()["written"] == 8
    with cutting_proxy(store_port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.cuts = [1_000_000, 4000, 2000]
        args = [*SETTINGS, "--data", URL, "--name", "far", "--checkpoint-every", "6", "--json"]
        far = paceline("train", *args, folder=tmp_path)
        assert far.code == 0, far.out
        assert proxy.cuts == []  # the line was as bad as planned
    result = far.data()["result"]
    assert result["state_sha256"] == expected["state_sha256"]
    assert result["metrics"] == expected["metrics"]
    assert result["data"] == URL
    written = [path.read_bytes() for path in (tmp_path / "runs/far").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in written)
    shutil.rmtree(tmp_path / "runs/far/checkpoints/at-00000012")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store_port}")
    again = paceline("train", "--resume", "runs/far", "--json", folder=tmp_path)
    assert again.code == 0, again.out
    assert again.data()["result"]["state_sha256"] == expected["state_sha256"]
