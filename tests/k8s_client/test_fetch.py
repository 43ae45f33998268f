"""Fetched files equal those on the job's volume, whatever connection is cut on the way."""

import random
from pathlib import Path

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.volume_pod import (
    NAMESPACE,
    WAYS,
    SwiftClock,
    VolumePod,
    busybox_tools,
    has_busybox,
    tree,
)
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError, PacelineError
from paceline.k8s.client.kubernetes_api import KubernetesApi
from paceline.k8s.kinds import POD
from paceline.k8s.transfer.chunks import CHUNK_BYTES
from paceline.k8s.transfer.fetch import Fetched, fetch
from paceline.k8s.transfer.helper_pod import open_helper
from paceline.k8s.transfer.pod_manifest import HelperRequest

WANTED = HelperRequest(namespace=NAMESPACE, claim="data", reads_only=True)


@pytest.fixture(autouse=True)
def pod(server: ApiServer, tmp_path: Path) -> VolumePod:
    made = VolumePod(server, tmp_path / "pod")
    rng = random.Random(3)
    results = made.volume / "sp500"
    for name in ("result.json", "-t", "with space", "deep/Größe", "empty"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_bytes(b"" if name == "empty" else rng.randbytes(5000))
    (results / "checkpoint.pt").write_bytes(rng.randbytes(2 * CHUNK_BYTES + 99))
    (results / ".paceline").mkdir()
    (results / ".paceline" / "upload-1.sha256").write_bytes(b"of an upload, and no result")
    return made


def fetched(api: KubernetesApi, out: Path, folder: str = "sp500") -> Fetched:
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        return fetch(helper, f"/volume/{folder}", folder, out, lambda *_: None)


def test_results_come_whole_though_ten_connections_are_cut(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path
) -> None:
    # Two of three commands: there are few, and all kinds of them are met.
    pod.cuts = {n + n // 2 + 1: WAYS[n % 3] for n in range(10)}
    result = fetched(api, tmp_path / "out")
    assert len(pod.ran) > max(pod.cuts), "all ten were met"
    assert tree(tmp_path / "out") == tree(pod.volume / "sp500")
    assert (result.files, result.got_files) == (6, 6)
    assert pod.server.of(POD) == []


def test_what_is_here_is_not_fetched_again(pod: VolumePod, api: KubernetesApi, tmp_path: Path) -> None:
    fetched(api, tmp_path / "out")
    (tmp_path / "out" / "result.json").write_bytes(b"damaged")
    assert fetched(api, tmp_path / "out").got_files == 1
    assert fetched(api, tmp_path / "out").got_files == 0
    assert tree(tmp_path / "out") == tree(pod.volume / "sp500")


def test_an_unfinished_file_is_gone_on_with(pod: VolumePod, api: KubernetesApi, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    whole = (pod.volume / "sp500" / "checkpoint.pt").read_bytes()
    (tmp_path / "out" / "checkpoint.pt.paceline-part").write_bytes(whole[: CHUNK_BYTES + 1000])
    fetched(api, tmp_path / "out")
    parts = [command[-1] for command in pod.ran if 'of="$part" bs=' in command[2]]
    assert parts == ["1", "2"], "the first part was here"
    assert tree(tmp_path / "out") == tree(pod.volume / "sp500")


def test_a_file_that_keeps_changing_is_reported_and_the_others_are_fetched(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path, wording: Wording
) -> None:
    log = pod.volume / "sp500" / "result.json"

    def write_on(number: int) -> None:
        log.write_bytes(f"command {number}".encode())

    pod.on_command = write_on
    with wording.raises(PacelineError):
        fetched(api, tmp_path / "out")
    others = {name: its for name, its in tree(pod.volume / "sp500").items() if name != "result.json"}
    assert tree(tmp_path / "out") == others


def test_a_missing_remote_folder_is_reported(api: KubernetesApi, tmp_path: Path, wording: Wording) -> None:
    with wording.raises(NotReadyError):
        fetched(api, tmp_path / "out", "sp5000")


@pytest.mark.skipif(not has_busybox(), reason="busybox is not installed")
def test_busybox_has_all_that_is_needed(pod: VolumePod, api: KubernetesApi, tmp_path: Path) -> None:
    pod.path = busybox_tools(tmp_path / "tools")
    fetched(api, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(pod.volume / "sp500")


@pytest.mark.parametrize("name", ["/etc/passwd", ".//etc/passwd", "./../../x", "./a/../../x"])
def test_a_pod_that_lies_about_its_files_writes_nowhere_else(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path, name: str, wording: Wording
) -> None:
    honest = pod.server.exec

    def lying(its: str, command: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        is_list = "find . " in command[2]
        return (0, f"5 0 {name}\n".encode(), b"") if is_list else honest(its, command, stdin)

    pod.server.exec = lying
    with wording.raises(PacelineError):
        fetched(api, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unreadable_file_is_reported_and_the_others_are_fetched(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path, wording: Wording
) -> None:
    honest = pod.server.exec

    def without(its: str, command: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        """The output of `sha256sum` when one of the files is not readable."""
        code, stdout, stderr = honest(its, command, stdin)
        if "xargs -0 sha256sum" in command[2]:
            stdout = b"".join(line for line in stdout.splitlines(True) if b"result.json" not in line)
        return code, stdout, stderr

    pod.server.exec = without
    with wording.raises(PacelineError):
        fetched(api, tmp_path / "out")
    others = {name: its for name, its in tree(pod.volume / "sp500").items() if name != "result.json"}
    assert tree(tmp_path / "out") == others


@pytest.mark.parametrize("name", ["result.json", "checkpoint.pt"])
def test_a_file_that_cannot_be_written_here_is_reported_and_the_others_continue(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path, name: str, wording: Wording
) -> None:
    in_the_way = tmp_path / "out" / name / "a folder"
    in_the_way.mkdir(parents=True)
    with wording.raises(PacelineError):
        fetched(api, tmp_path / "out")
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    fetched(api, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(pod.volume / "sp500")


def test_what_a_file_system_keeps_for_itself_is_no_result(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path
) -> None:
    (pod.volume / "lost+found").mkdir()
    (pod.volume / "lost+found" / "#12").write_bytes(b"a piece of something")
    fetched(api, tmp_path / "out", ".")
    assert tree(tmp_path / "out" / "sp500") == tree(pod.volume / "sp500")
    assert not (tmp_path / "out" / "lost+found").exists()
