"""Downloads arrive whole over a bad network, and every failure is reported with a hint."""

import hashlib
import socket
import tarfile
from pathlib import Path

import pytest
from tests.fixtures.cifar_folder import archive_of, cifar_files, cifar_folder
from tests.fixtures.file_server import Served, file_server

from paceline.core.errors import ConfigError, ExitCode, NotReadyError
from paceline.tasks.cifar10.data import ARCHIVE, FOLDER
from paceline.tasks.cifar10.download import Fetched, UnreachableFileError, WrongFileError, fetch_cifar10

FILES = cifar_files(python2=True)
PACKED = archive_of(FILES)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetch(to: Path, served: Served, expected: str | None = None) -> tuple[Fetched, list[int]]:
    """What was fetched, and how many bytes had come each time it was said."""
    heard: list[int] = []
    done = fetch_cifar10(
        to,
        url=served.url,
        sha256=sha256(served.content) if expected is None else expected,
        on_bytes=lambda done, _: heard.append(done),
    )
    return done, heard


def test_what_is_fetched_is_downloaded_proved_and_unpacked(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        done, heard = fetch(tmp_path / "data", served)
    assert done.folder == tmp_path / "data" / FOLDER
    assert (done.training_images, done.test_images) == (40, 8)
    assert (done.was_downloaded, done.was_there) == (True, False)
    assert {p.name: p.read_bytes() for p in done.folder.iterdir()} == FILES
    assert heard[-1] == len(PACKED)
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [FOLDER, ARCHIVE]


def test_a_second_time_nothing_is_done_and_nobody_is_asked(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        fetch(tmp_path, served)
        again, _ = fetch(tmp_path, served)
        assert len(served.asked) == 1
    assert again.was_there


def test_a_line_that_breaks_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        served.cuts = [100, 1000]
        done, _ = fetch(tmp_path, served)
        assert served.asked == [None, "bytes=100-", "bytes=1100-"]
    assert done.training_images == 40


def test_a_download_that_was_interrupted_goes_on_the_next_time(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        served.cuts = [500, 0]
        with pytest.raises(UnreachableFileError, match=f"after 500 of {len(PACKED)} bytes") as caught:
            fetch(tmp_path, served)
        assert f"paceline data fetch cifar10 --to {tmp_path}" in caught.value.hint
        fetch(tmp_path, served)
        assert served.asked[-1] == "bytes=500-"


def test_a_server_without_ranges_sends_everything_anew(tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(b"of an earlier try")
    with file_server(PACKED) as served:
        served.has_ranges = False
        done, _ = fetch(tmp_path, served)
    assert done.training_images == 40


@pytest.mark.parametrize("left", [PACKED, PACKED + b"more than there is"])
def test_what_is_left_of_an_earlier_try_is_taken_or_begun_anew(left: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{ARCHIVE}.part").write_bytes(left)
    with file_server(PACKED) as served:
        done, _ = fetch(tmp_path, served)
    assert done.training_images == 40


def test_a_wrong_checksum_is_an_error_and_nothing_is_kept(tmp_path: Path) -> None:
    with file_server(PACKED) as served, pytest.raises(WrongFileError) as caught:
        fetch(tmp_path, served, expected="0" * 64)
    assert sha256(PACKED) in caught.value.what
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_error_says_where_to_put_the_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    nobody = Served(PACKED, url=f"http://127.0.0.1:{port}/x.tar.gz")
    with pytest.raises(UnreachableFileError) as caught:
        fetch(tmp_path, nobody)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert "Connection refused" in caught.value.what
    assert f"put it at {tmp_path / ARCHIVE}" in caught.value.hint
    (tmp_path / ARCHIVE).write_bytes(PACKED)
    done, _ = fetch(tmp_path, nobody)
    assert (done.training_images, done.was_downloaded) == (40, False)


def test_an_archive_by_hand_that_is_another_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(PACKED)
    with pytest.raises(WrongFileError) as caught:
        fetch(tmp_path, Served(PACKED), expected="0" * 64)
    assert f"--sha256 {sha256(PACKED)}" in caught.value.hint


def test_a_server_that_has_no_such_file_is_quoted(tmp_path: Path) -> None:
    with file_server(PACKED) as served:
        served.status = 404
        with pytest.raises(UnreachableFileError, match="the server answers 404 Not Found"):
            fetch(tmp_path, served)
        assert len(served.asked) == 1


def test_only_web_addresses_are_followed(tmp_path: Path) -> None:
    with pytest.raises(UnreachableFileError, match="no web address"):
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
        done, _ = fetch(tmp_path / "data", served)
    assert not outside.exists()
    assert {p.name: p.read_bytes() for p in done.folder.iterdir()} == FILES
    assert not any(p.is_symlink() for p in done.folder.iterdir())


def test_an_archive_whose_batches_are_damaged_never_becomes_a_folder(tmp_path: Path) -> None:
    damaged = archive_of({**FILES, "data_batch_4": b"\x80\x02."})
    with file_server(damaged) as served, pytest.raises(ConfigError, match="data_batch_4 is damaged"):
        fetch(tmp_path, served)
    assert [p.name for p in tmp_path.iterdir()] == [ARCHIVE]


def test_a_damaged_folder_is_told_and_not_taken_for_done(tmp_path: Path) -> None:
    (cifar_folder(tmp_path) / "test_batch").unlink()
    with pytest.raises(ConfigError, match="it has no test_batch"):
        fetch(tmp_path, Served(PACKED))


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with file_server(PACKED) as served, pytest.raises(NotReadyError, match="cannot be written"):
        fetch(tmp_path / "file", served)
