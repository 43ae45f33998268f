"""Do files arrive whole on a volume, whatever is cut on the way, and does nothing stay behind?"""

import random
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.api_server import ApiServer, Refusal
from tests.fixtures.volume_pod import (
    NAMESPACE,
    WAYS,
    SwiftClock,
    VolumePod,
    busybox_tools,
    has_busybox,
    tree,
)

from paceline.core.errors import NotReadyError, PacelineError
from paceline.k8s.client.api import ForbiddenError, UnreachableError
from paceline.k8s.client.kubernetes_api import KubernetesApi
from paceline.k8s.kinds import POD, Kind
from paceline.k8s.transfer.chunks import CHUNK_BYTES
from paceline.k8s.transfer.helper_pod import Helper, open_helper
from paceline.k8s.transfer.pod_manifest import LABELS, HelperRequest
from paceline.k8s.transfer.upload import Upload, Uploaded, plan_upload, send_files

LARGE = 2 * CHUNK_BYTES + 12_345
UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/2 nodes: volume node affinity conflict",
}
WANTED = HelperRequest(namespace=NAMESPACE, claim="data")


@pytest.fixture(autouse=True)
def pod(server: ApiServer, tmp_path: Path) -> VolumePod:
    return VolumePod(server, tmp_path / "pod")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Small files, an empty one, names that a shell could stumble over, and a file of three parts."""
    dice = random.Random(1)
    folder = tmp_path / "mine"
    names = ["a.txt", "empty", "-rf", "with space", 'it\'s "$HOME" `x`', "deep/er/Größe.bin", "deep/er/2: OK"]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"" if name == "empty" else dice.randbytes(1000 * number + 1))
    (folder / "deep" / "large.npz").write_bytes(dice.randbytes(LARGE))
    return folder


def planned(source: Path, to: str = "") -> Upload:
    return plan_upload(source, "data", to, force=False, on_bytes=lambda *_: None)


def carried(api: KubernetesApi, plan: Upload, *, clock: SwiftClock | None = None) -> Uploaded:
    said: list[str] = []
    with open_helper(api, WANTED, clock or SwiftClock(), said.append) as helper:
        return send_files(helper, _inside(plan), plan.files, plan.sources, lambda *_: None)


def _inside(plan: Upload) -> str:
    return f"/volume/{plan.folder}".rstrip("/")


def test_a_folder_arrives_whole_though_ten_connections_are_cut(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    # Every second command, each time in another way; whatever the command was.
    pod.cuts = {2 * n + 1: WAYS[n % 3] for n in range(10)}
    plan, clock = planned(source), SwiftClock()
    done = carried(api, plan, clock=clock)
    assert len(pod.ran) > max(pod.cuts), "all ten were met"
    assert clock.slept_s > 0, "nobody asks again at once"
    assert tree(pod.volume / "mine") == tree(source)
    assert (done.files, done.bytes) == (len(plan.files), plan.bytes)
    checked = subprocess.run(
        ["sha256sum", "-c", done.manifest], cwd=pod.volume, capture_output=True, check=True
    )
    assert checked.stdout.count(b": OK\n") == len(plan.files)
    assert [path.name for path in (pod.volume / ".paceline").iterdir()] == [Path(done.manifest).name]
    assert pod.server.of(POD) == []


def test_the_second_time_nothing_is_sent(pod: VolumePod, api: KubernetesApi, source: Path) -> None:
    first, sent = carried(api, planned(source, "in/here")), pod.sent_bytes
    again = carried(api, planned(source, "in/here"))
    assert first.sent_files == first.files
    assert (again.sent_files, again.chunks, pod.sent_bytes) == (0, 0, sent)
    assert tree(pod.volume / "in" / "here" / "mine") == tree(source)


def test_ctrl_c_leaves_no_pod_and_no_half_file_and_the_next_attempt_goes_on(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    plan, calls = planned(source), 0

    def stop(_done: int, _total: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # the bundle and the first of three parts have been sent
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper,
    ):
        send_files(helper, _inside(plan), plan.files, plan.sources, stop)
    assert pod.server.of(POD) == []
    assert tree(pod.volume) == {}, "what is not complete is not to be seen"
    done = carried(api, planned(source))
    assert done.chunks == 2, "the bundle and one part were there"
    assert tree(pod.volume / "mine") == tree(source)


def test_what_was_changed_here_or_damaged_there_is_sent_and_nothing_else(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    carried(api, planned(source))
    (source / "a.txt").write_bytes(b"new")
    with (pod.volume / "mine" / "deep" / "large.npz").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(b"damaged")
        file.seek(0, 2)
        file.write(b"and too long")
    done = carried(api, planned(source))
    assert done.sent_files == 2
    assert tree(pod.volume / "mine") == tree(source)


def test_a_staged_file_that_is_too_long_is_cut_off(pod: VolumePod, api: KubernetesApi, source: Path) -> None:
    plan = planned(source)
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        calls = iter([None] * 4)  # bundle and three parts, and then it is stopped before it renames
        with pytest.raises(StopIteration):
            send_files(helper, _inside(plan), plan.files, plan.sources, lambda *_: next(calls))
    (staged,) = pod.volume.rglob("large.npz")
    with staged.open("ab") as file:
        file.write(b"of an earlier, longer version")
    assert carried(api, planned(source)).chunks == 1
    assert tree(pod.volume / "mine") == tree(source)


def test_a_file_that_changes_while_it_is_sent_is_told(api: KubernetesApi, source: Path) -> None:
    plan = planned(source)
    (source / "a.txt").write_bytes(b"another")
    with pytest.raises(PacelineError, match=r"mine/a\.txt was changed while it was sent"):
        carried(api, plan)


def test_a_volume_without_room_is_told_before_anything_is_sent(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    run = pod.server.exec

    def small(its: str, command: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        return (0, b"1000\n", b"") if "df -Pk" in command[2] else run(its, command, stdin)

    pod.server.exec = small
    with pytest.raises(PacelineError, match="room for 1,024,000 bytes"):
        carried(api, planned(source))
    assert pod.sent_bytes == 0
    assert pod.server.of(POD) == []


def test_a_script_that_fails_is_told_in_its_own_words(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    (pod.volume / "mine").write_bytes(b"a file where a folder shall be")
    with pytest.raises(PacelineError, match="renaming files failed in pod paceline-files-"):
        carried(api, planned(source))


def test_a_line_that_stays_cut_is_given_up_and_the_pod_removed_if_that_can_be(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    pod.cuts = dict.fromkeys(range(5, 1000), "before")
    with pytest.raises(UnreachableError):
        carried(api, planned(source))
    assert pod.server.of(POD) == []


def test_a_claim_that_is_not_there_is_told_with_those_that_are(api: KubernetesApi, pod: VolumePod) -> None:
    wanted = HelperRequest(namespace=NAMESPACE, claim="dada")
    with (
        pytest.raises(NotReadyError, match=r"no claim dada in namespace train; claims there: data"),
        open_helper(api, wanted, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.writes == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"phase": "Pending", "conditions": [UNSCHEDULED]},
            "no node takes it: 0/2 nodes: volume node affinity conflict",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "404"}}}]},
            "the image cannot be pulled",
        ),
    ],
)
def test_a_pod_that_does_not_start_is_told_and_removed(
    pod: VolumePod, api: KubernetesApi, status: dict[str, object], said: str
) -> None:
    pod.status = status
    with (
        pytest.raises(NotReadyError, match=said),
        open_helper(api, WANTED, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.of(POD) == []


def test_an_image_without_tools_is_told(pod: VolumePod, api: KubernetesApi) -> None:
    pod.server.exec = lambda *_: (0, b"sha256sum\ntar\n", b"")
    with (
        pytest.raises(NotReadyError, match=r"image busybox:1\.37 lacks sha256sum, tar"),
        open_helper(api, WANTED, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.of(POD) == []


def test_a_pod_whose_making_was_answered_by_nobody_is_made_once_and_removed(
    pod: VolumePod, api: KubernetesApi
) -> None:
    lost: list[str] = []

    def lose(verb: str, kind: Kind, what: dict[str, object]) -> Refusal | None:
        if verb == "create" and kind == POD and not lost:
            lost.append("once")
            pod.server.put(dict(what))
            return 503, "ServiceUnavailable", "the answer was lost"
        return None

    pod.server.rules.append(lose)
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        assert [one["metadata"]["name"] for one in pod.server.of(POD)] == [helper.pod]
    assert pod.server.of(POD) == []


def test_who_may_make_no_pod_is_not_told_to_remove_one(pod: VolumePod, api: KubernetesApi) -> None:
    def refuse(verb: str, kind: Kind, _what: dict[str, object]) -> Refusal | None:
        is_refused = kind == POD and verb in ("create", "delete")
        return (403, "Forbidden", "pods is forbidden") if is_refused else None

    pod.server.rules.append(refuse)
    said: list[str] = []
    with (
        pytest.raises(ForbiddenError, match="pods is forbidden"),
        open_helper(api, HelperRequest(namespace=NAMESPACE, claim="data"), SwiftClock(), said.append),
    ):
        raise AssertionError("there is no pod")
    assert not any("could not be removed" in one for one in said)


def test_helpers_that_ended_are_swept_and_others_are_left(pod: VolumePod, api: KubernetesApi) -> None:
    def other(name: str, phase: str, labels: dict[str, str]) -> None:
        about = {"name": name, "namespace": NAMESPACE, "labels": labels}
        pod.server.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": phase}})

    other("ended", "Failed", LABELS)
    other("at-work", "Running", LABELS)
    other("somebodys", "Failed", {"app": "theirs"})
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        assert isinstance(helper, Helper)
    assert {one["metadata"]["name"] for one in pod.server.of(POD)} == {"at-work", "somebodys"}


@pytest.mark.skipif(not has_busybox(), reason="busybox is not installed")
def test_busybox_has_all_that_is_needed(
    pod: VolumePod, api: KubernetesApi, source: Path, tmp_path: Path
) -> None:
    pod.path = busybox_tools(tmp_path / "tools")
    carried(api, planned(source))
    assert tree(pod.volume / "mine") == tree(source)


@pytest.mark.soak
def test_ten_thousand_files_and_a_gibibyte_survive_ten_cuts(
    pod: VolumePod, api: KubernetesApi, tmp_path: Path
) -> None:
    dice, folder = random.Random(2), tmp_path / "many"
    for number in range(10_000):
        place = folder / f"{number % 100:02d}" / f"{number}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(dice.randbytes(50_000))
    with (folder / "large.bin").open("wb") as file:
        for _ in range(550):
            file.write(dice.randbytes(1 << 20))
    pod.cuts = {17 * n + 5: WAYS[n % 3] for n in range(10)}
    done = carried(api, planned(folder))
    assert len(pod.ran) > max(pod.cuts)
    assert done.files == 10_001
    assert tree(pod.volume / "many") == tree(folder)
