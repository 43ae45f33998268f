"""A data set in a real S3-compatible store is read whole over a bad connection; refusals are clear."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.aws.s3_server import empty_bucket, s3_server
from tests.fixtures.servers.cutting_proxy import cutting_proxy
from tests.fixtures.servers.stores import numbers, source
from tests.fixtures.wording import Wording

from paceline.datasets.index import INDEX
from paceline.datasets.opening import open_data_set
from paceline.datasets.writing import WriteSummary, write_data_set
from paceline.storage.s3 import S3Store
from paceline.storage.store import (
    DamagedDataError,
    MissingDataError,
    RefusedByStoreError,
    UnreachableStoreError,
)

pytest.importorskip("boto3", reason="the store is NOT tested: pip install 'moto[server]' boto3")
pytest.importorskip("moto.server", reason="the store is NOT tested: pip install 'moto[server]'")

BUCKET = "data-sets"
URL = f"s3://{BUCKET}/team/numbers"
RECORDS = numbers(40_000)


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


def write() -> WriteSummary:
    return write_data_set(S3Store(URL), source(RECORDS), shard_records=30_000, on_bytes=lambda *_: None)


def read(cache: Path, url: str = URL) -> None:
    """All of it, and in an order that touches every block."""
    reader = open_data_set(url, cache=str(cache)).reader("train")
    order = np.random.default_rng(0).permutation(len(RECORDS))
    assert np.array_equal(reader.take(order).reshape(-1), RECORDS[order])


def put(client: Any, name: str, data: bytes) -> None:  # Any: boto3's
    client.put_object(Bucket=BUCKET, Key=f"team/numbers/{name}", Body=data)


def get(client: Any, name: str) -> bytes:  # Any: boto3's
    content: bytes = client.get_object(Bucket=BUCKET, Key=f"team/numbers/{name}")["Body"].read()
    return content


def test_what_was_written_is_not_written_again_and_comes_back_as_it_was(client: Any, tmp_path: Path) -> None:
    assert write().written == 2
    assert write().written == 0
    data = get(client, "train-000001.npy")
    put(client, "train-000001.npy", data)  # by another tool, which notes no checksum
    assert write().written == 0
    put(client, "train-000001.npy", data[:-1])
    assert write().written == 1
    assert get(client, "train-000001.npy") == data
    read(tmp_path)


@pytest.mark.usefixtures("client")
def test_truncated_responses_are_requested_again_from_there(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write()
    port = int(variables["AWS_ENDPOINT_URL"].rpartition(":")[2])
    with cutting_proxy(port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.cuts = [100_000, 5, 300_000, 70_000]
        read(tmp_path)
        assert proxy.has_cut == 4
        assert proxy.cuts == []


def test_each_damage_in_the_store_is_one_clear_error(client: Any, tmp_path: Path, wording: Wording) -> None:
    write()
    data = get(client, "train-000001.npy")
    put(client, "train-000001.npy", data[:-1] + bytes([data[-1] ^ 1]))
    with wording.raises(DamagedDataError):
        read(tmp_path / "changed")
    put(client, "train-000001.npy", data[:-1])
    with wording.raises(DamagedDataError):
        read(tmp_path / "short")
    client.delete_object(Bucket=BUCKET, Key="team/numbers/train-000001.npy")
    with wording.raises(MissingDataError):
        read(tmp_path / "missing")
    put(client, INDEX, get(client, INDEX)[:-1])
    with wording.raises(DamagedDataError):
        read(tmp_path / "index")
    client.delete_object(Bucket=BUCKET, Key=f"team/numbers/{INDEX}")
    with wording.raises(MissingDataError):
        read(tmp_path / "none")


@pytest.mark.usefixtures("client")
def test_a_refusal_of_the_store_is_reported_with_the_reason_and_never_a_secret(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(MissingDataError):
        read(tmp_path, "s3://no-such-bucket/x")
    _ask_for_keys(variables, "0")
    try:
        with wording.raises(RefusedByStoreError) as caught:
            read(tmp_path)
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    finally:
        _ask_for_keys(variables, "inf")
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with wording.raises(RefusedByStoreError):
        read(tmp_path)
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:very-secret@127.0.0.1:1")
    with wording.raises(UnreachableStoreError) as reported:
        read(tmp_path)
    assert "very-secret" not in str(reported.value) + reported.value.hint


def _ask_for_keys(variables: dict[str, str], after: str) -> None:
    """From so many requests on, moto wants to know who we are."""
    url = f"{variables['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    requested = urllib.request.Request(url, data=after.encode(), headers={"Content-Type": "text/plain"})
    with urllib.request.urlopen(requested, timeout=30) as answer:
        assert answer.status == 200
