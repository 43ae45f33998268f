"""Downloads arrive whole over a bad network, and every failure is reported with a hint."""

import errno
import hashlib
import os
import socket
import tarfile
from pathlib import Path

import pytest
from tests.fixtures.servers.file_server import Served, file_server
from tests.fixtures.tasks.cifar_folder import archive_of, cifar_files, cifar_folder
from tests.fixtures.wording import Wording

from paceline.core.errors import ConfigError, ExitCode, NotReadyError
from paceline.tasks.cifar10.data import ARCHIVE, FOLDER
from paceline.tasks.cifar10.download import Fetched, UnreachableFileError, WrongFileError, fetch_cifar10

FILES = cifar_files(python2=True)
PACKED = archive_of(FILES)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetch(to: Path, served: Served, expected: str | None = None) -> tuple[Fetched, list[int]]:
    """What was fetched, and how many bytes had come each time it was said."""
    received: list[int] = []
    fetched = fetch_cifar10(
        to,
        url=served.url,
        sha256=sha256(served.content) if expected is None else expected,
        on_bytes=lambda result, _: received.append(result),
    )
    return fetched, received


def test_what_is_fetched_is_downloaded_proved_and_unpacked(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        result, received = fetch(tmp_path / "data", served)
    assert result.folder == tmp_path / "data" / FOLDER
    assert (result.training_images, result.test_images) == (40, 8)
    assert (result.was_downloaded, result.was_there) == (True, False)
    assert {p.name: p.read_bytes() for p in result.folder.iterdir()} == FILES
    assert received[-1] == len(PACKED)
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [FOLDER, ARCHIVE]


def test_a_second_fetch_does_nothing_and_sends_no_request(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        fetch(tmp_path, served)
        again, _ = fetch(tmp_path, served)
        assert len(served.asked) == 1
    assert again.was_there


def test_a_line_that_breaks_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        served.cuts = [100, 1000]
        result, _ = fetch(tmp_path, served)
        assert served.asked == [None, "bytes=100-", "bytes=1100-"]
    assert result.training_images == 40


def test_an_interrupted_download_resumes_the_next_time(tmp_path: Path, wording: Wording) -> None:
    with file_server(PACKED) as served:
        served.cuts = [500, 0]
        with wording.raises(UnreachableFileError) as caught:
            fetch(tmp_path, served)
        assert f"paceline data fetch cifar10 --to {tmp_path}" in caught.value.hint
        fetch(tmp_path, served)
        assert served.asked[-1] == "bytes=500-"


def test_a_server_without_ranges_sends_everything_again(tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(b"of an earlier try")
    with file_server(PACKED) as served:
        served.has_ranges = False
        result, _ = fetch(tmp_path, served)
    assert result.training_images == 40


@pytest.mark.parametrize("left", [PACKED, PACKED + b"more than there is"])
def test_a_partial_download_is_resumed_or_restarted(left: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(left)
    with file_server(PACKED) as served:
        result, _ = fetch(tmp_path, served)
    assert result.training_images == 40


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(tmp_path: Path) -> None:
    with file_server(PACKED) as served, pytest.raises(WrongFileError) as caught:
        fetch(tmp_path, served, expected="0" * 64)
    assert sha256(PACKED) in caught.value.what
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_error_states_where_to_put_the_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    unreachable = Served(PACKED, url=f"http://127.0.0.1:{port}/x.tar.gz")
    with pytest.raises(UnreachableFileError) as caught:
        fetch(tmp_path, unreachable)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert os.strerror(errno.ECONNREFUSED) in caught.value.what
    assert str(tmp_path / ARCHIVE) in caught.value.hint
    (tmp_path / ARCHIVE).write_bytes(PACKED)
    result, _ = fetch(tmp_path, unreachable)
    assert (result.training_images, result.was_downloaded) == (40, False)


def test_an_archive_by_hand_that_is_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(PACKED)
    with pytest.raises(WrongFileError) as caught:
        fetch(tmp_path, Served(PACKED), expected="0" * 64)
    assert f"--sha256 {sha256(PACKED)}" in caught.value.hint


def test_a_server_that_has_no_such_file_is_quoted(tmp_path: Path, wording: Wording) -> None:
    with file_server(PACKED) as served:
        served.status = 404
        with wording.raises(UnreachableFileError):
            fetch(tmp_path, served)
        assert len(served.asked) == 1


def test_only_web_addresses_are_followed(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(UnreachableFileError):
        fetch(tmp_path, Served(b"", url="file:///etc/passwd"))


def hostile_members(outside: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    link = tarfile.TarInfo(f"{FOLDER}/data_batch_1")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    return [
        (tarfile.TarInfo(f"{FOLDER}/../../{outside.name}"), b"came out"),
        (tarfile.TarInfo(str(outside)), b"came out"),
        (tarfile.TarInfo(f"{FOLDER}/extra"), b"not wanted"),
        (link, b""),
    ]


def test_nothing_of_a_hostile_archive_gets_out_of_its_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    with file_server(archive_of(FILES, *hostile_members(outside))) as served:
        result, _ = fetch(tmp_path / "data", served)
    assert not outside.exists()
    assert {p.name: p.read_bytes() for p in result.folder.iterdir()} == FILES
    assert not any(p.is_symlink() for p in result.folder.iterdir())


def test_an_archive_whose_batches_are_damaged_never_becomes_a_folder(
    tmp_path: Path, wording: Wording
) -> None:
    damaged = archive_of({**FILES, "data_batch_4": b"\x80\x02."})
    with file_server(damaged) as served, wording.raises(ConfigError):
        fetch(tmp_path, served)
    assert [p.name for p in tmp_path.iterdir()] == [ARCHIVE]


def test_a_damaged_folder_is_reported_and_not_taken_for_complete(tmp_path: Path, wording: Wording) -> None:
    (cifar_folder(tmp_path) / "test_batch").unlink()
    with wording.raises(ConfigError):
        fetch(tmp_path, Served(PACKED))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, wording: Wording) -> None:
    (tmp_path / "file").write_text("in the way")
    with file_server(PACKED) as served, wording.raises(NotReadyError):
        fetch(tmp_path / "file", served)
