"""Uploaded files arrive whole, whatever connection is cut on the way, and nothing is left behind."""

import random
import subprocess
from pathlib import Path

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
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
    rng = random.Random(1)
    folder = tmp_path / "mine"
    names = ["a.txt", "empty", "-rf", "with space", 'it\'s "$HOME" `x`', "deep/er/Größe.bin", "deep/er/2: OK"]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"" if name == "empty" else rng.randbytes(1000 * number + 1))
    (folder / "deep" / "large.npz").write_bytes(rng.randbytes(LARGE))
    return folder


def planned(source: Path, to: str = "") -> Upload:
    return plan_upload(source, "data", to, force=False, on_bytes=lambda *_: None)


def carried(api: KubernetesApi, plan: Upload, *, clock: SwiftClock | None = None) -> Uploaded:
    messages: list[str] = []
    with open_helper(api, WANTED, clock or SwiftClock(), messages.append) as helper:
        return send_files(helper, _inside(plan), plan.files, plan.sources, lambda *_: None)


def _inside(plan: Upload) -> str:
    return f"/volume/{plan.folder}".rstrip("/")


def test_a_folder_arrives_whole_though_ten_connections_are_cut(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    # Every second command, each time in another way; whatever the command was.
    pod.cuts = {2 * n + 1: WAYS[n % 3] for n in range(10)}
    plan, clock = planned(source), SwiftClock()
    uploaded = carried(api, plan, clock=clock)
    assert len(pod.ran) > max(pod.cuts), "all ten were met"
    assert clock.slept_s > 0, "the retry is not immediate"
    assert tree(pod.volume / "mine") == tree(source)
    assert (uploaded.files, uploaded.bytes) == (len(plan.files), plan.bytes)
    checked = subprocess.run(
        ["sha256sum", "-c", uploaded.manifest], cwd=pod.volume, capture_output=True, check=True
    )
    assert checked.stdout.count(b": OK\n") == len(plan.files)
    assert [path.name for path in (pod.volume / ".paceline").iterdir()] == [Path(uploaded.manifest).name]
    assert pod.server.of(POD) == []


def test_the_second_time_nothing_is_sent(pod: VolumePod, api: KubernetesApi, source: Path) -> None:
    first, sent = carried(api, planned(source, "in/here")), pod.sent_bytes
    again = carried(api, planned(source, "in/here"))
    assert first.sent_files == first.files
    assert (again.sent_files, again.chunks, pod.sent_bytes) == (0, 0, sent)
    assert tree(pod.volume / "in" / "here" / "mine") == tree(source)


def test_ctrl_c_leaves_no_pod_and_no_partial_file_and_the_next_attempt_resumes(
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
    uploaded = carried(api, planned(source))
    assert uploaded.chunks == 2, "the bundle and one part were there"
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
    uploaded = carried(api, planned(source))
    assert uploaded.sent_files == 2
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


def test_a_file_that_changes_while_it_is_sent_is_reported(
    api: KubernetesApi, source: Path, wording: Wording
) -> None:
    plan = planned(source)
    (source / "a.txt").write_bytes(b"another")
    with wording.raises(PacelineError):
        carried(api, plan)


def test_a_volume_without_room_is_reported_before_anything_is_sent(
    pod: VolumePod, api: KubernetesApi, source: Path, wording: Wording
) -> None:
    run = pod.server.exec

    def small(its: str, command: list[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        return (0, b"1000\n", b"") if "df -Pk" in command[2] else run(its, command, stdin)

    pod.server.exec = small
    with wording.raises(PacelineError):
        carried(api, planned(source))
    assert pod.sent_bytes == 0
    assert pod.server.of(POD) == []


def test_a_script_that_fails_is_reported_with_its_own_output(
    pod: VolumePod, api: KubernetesApi, source: Path, wording: Wording
) -> None:
    (pod.volume / "mine").write_bytes(b"a file where a folder shall be")
    with wording.raises(PacelineError):
        carried(api, planned(source))


def test_a_line_that_stays_cut_is_given_up_and_the_pod_removed_if_that_can_be(
    pod: VolumePod, api: KubernetesApi, source: Path
) -> None:
    pod.cuts = dict.fromkeys(range(5, 1000), "before")
    with pytest.raises(UnreachableError):
        carried(api, planned(source))
    assert pod.server.of(POD) == []


def test_a_missing_claim_is_reported_with_the_existing_ones(
    api: KubernetesApi, pod: VolumePod, wording: Wording
) -> None:
    helper_request = HelperRequest(namespace=NAMESPACE, claim="dada")
    with (
        wording.raises(NotReadyError),
        open_helper(api, helper_request, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.writes == []


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending", "conditions": [UNSCHEDULED]},
        {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "404"}}}]},
    ],
)
def test_a_pod_that_does_not_start_is_reported_and_removed(
    pod: VolumePod, api: KubernetesApi, status: dict[str, object], wording: Wording
) -> None:
    pod.status = status
    with (
        wording.raises(NotReadyError),
        open_helper(api, WANTED, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.of(POD) == []


def test_an_image_without_tools_is_reported(pod: VolumePod, api: KubernetesApi, wording: Wording) -> None:
    pod.server.exec = lambda *_: (0, b"sha256sum\ntar\n", b"")
    with (
        wording.raises(NotReadyError),
        open_helper(api, WANTED, SwiftClock(), lambda _: None),
    ):
        pass
    assert pod.server.of(POD) == []


def test_a_pod_whose_creation_got_no_response_is_created_once_and_removed(
    pod: VolumePod, api: KubernetesApi
) -> None:
    lost: list[str] = []

    def lose(verb: str, kind: Kind, values: dict[str, object]) -> Refusal | None:
        if verb == "create" and kind == POD and not lost:
            lost.append("once")
            pod.server.put(dict(values))
            return 503, "ServiceUnavailable", "the answer was lost"
        return None

    pod.server.rules.append(lose)
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        assert [manifest["metadata"]["name"] for manifest in pod.server.of(POD)] == [helper.pod]
    assert pod.server.of(POD) == []


def test_a_user_who_may_not_create_pods_gets_no_hint_to_remove_one(
    pod: VolumePod, api: KubernetesApi, wording: Wording
) -> None:
    def refuse(verb: str, kind: Kind, _what: dict[str, object]) -> Refusal | None:
        is_refused = kind == POD and verb in ("create", "delete")
        return (403, "Forbidden", "pods is forbidden") if is_refused else None

    pod.server.rules.append(refuse)
    messages: list[str] = []
    with (
        wording.raises(ForbiddenError),
        open_helper(api, HelperRequest(namespace=NAMESPACE, claim="data"), SwiftClock(), messages.append),
    ):
        raise AssertionError("there is no pod")
    wording("\n".join(messages))


def test_helpers_that_ended_are_swept_and_others_are_left(pod: VolumePod, api: KubernetesApi) -> None:
    def other(name: str, phase: str, labels: dict[str, str]) -> None:
        about = {"name": name, "namespace": NAMESPACE, "labels": labels}
        pod.server.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": phase}})

    other("ended", "Failed", LABELS)
    other("at-work", "Running", LABELS)
    other("of-another-tool", "Failed", {"app": "theirs"})
    with open_helper(api, WANTED, SwiftClock(), lambda _: None) as helper:
        assert isinstance(helper, Helper)
    assert {manifest["metadata"]["name"] for manifest in pod.server.of(POD)} == {"at-work", "of-another-tool"}


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
    rng, folder = random.Random(2), tmp_path / "many"
    for number in range(10_000):
        place = folder / f"{number % 100:02d}" / f"{number}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(rng.randbytes(50_000))
    with (folder / "large.bin").open("wb") as file:
        for _ in range(550):
            file.write(rng.randbytes(1 << 20))
    pod.cuts = {17 * n + 5: WAYS[n % 3] for n in range(10)}
    uploaded = carried(api, planned(folder))
    assert len(pod.ran) > max(pod.cuts)
    assert uploaded.files == 10_001
    assert tree(pod.volume / "many") == tree(folder)
