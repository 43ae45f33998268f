"""The client of the API server: objects, pages, watches, logs, exec, and every kind of refusal."""

import socket
from pathlib import Path
from threading import Event

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.wording import Wording

from paceline.core.errors import NotReadyError
from paceline.k8s.client import kubernetes_api
from paceline.k8s.client.api import (
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    Manifest,
    NotThereError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from paceline.k8s.client.kubernetes_api import KubernetesApi, connect
from paceline.k8s.kinds import CONFIG_MAP, NODE, POD, PYTORCH_JOB, RAY_JOB
from paceline.k8s.objects import mapping


def pod(name: str, **labels: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "labels": dict(labels)},
        "spec": {},
    }


def test_what_is_created_is_there_can_be_changed_and_goes(
    api: KubernetesApi, server: ApiServer, wording: Wording
) -> None:
    made = api.create(pod("one", run="r1"))
    assert made["metadata"]["uid"]  # type: ignore[index, call-overload]
    assert api.get(POD, "one", "train")["kind"] == "Pod"
    changed = api.patch(POD, "one", "train", {"metadata": {"annotations": {"said": "hello"}}})
    assert changed["metadata"]["annotations"] == {"said": "hello"}  # type: ignore[index, call-overload]
    assert changed["metadata"]["labels"] == {"run": "r1"}  # type: ignore[index, call-overload]
    api.delete(POD, "one", "train")
    api.delete(POD, "one", "train")  # what is gone is fine
    with wording.raises(NotThereError):
        api.get(POD, "one", "train")
    assert all(
        item.query.get("fieldValidation") == "Strict" for item in server.writes if item.method == "POST"
    )


def test_an_object_is_deleted_by_its_uid_and_not_by_its_name(api: KubernetesApi) -> None:
    """Another object of this name has taken the place of the one that was meant."""
    made = api.create(pod("one"))
    uid = str(mapping(made, "metadata")["uid"])
    with pytest.raises(ConflictError):
        api.delete(POD, "one", "train", uid="the-one-before", grace_s=0)
    assert mapping(api.get(POD, "one", "train"), "metadata")["uid"] == uid
    api.delete(POD, "one", "train", uid=uid, grace_s=0)
    with pytest.raises(NotThereError):
        api.get(POD, "one", "train")


def test_a_dry_run_writes_nothing(api: KubernetesApi, server: ApiServer) -> None:
    api.create(pod("one"), dry_run=True)
    assert server.of(POD) == []
    assert server.writes == []


def test_lists_are_whole_however_many_pages_they_have(api: KubernetesApi, server: ApiServer) -> None:
    server.remove(NODE, "node-a")
    for number in range(1203):
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number:04d}"}})
    result = api.find(NODE)
    assert [item["metadata"]["name"] for item in result.items] == [f"node-{n:04d}" for n in range(1203)]  # type: ignore[index, call-overload]
    assert len(server.asked) == 3


def test_labels_and_fields_choose(api: KubernetesApi) -> None:
    api.create(pod("one", run="r1"))
    api.create(pod("two", run="r2"))
    chosen = api.find(POD, "train", labels="run=r2").items
    assert [manifest["metadata"]["name"] for manifest in chosen] == ["two"]  # type: ignore[index, call-overload]
    chosen = api.find(POD, fields="metadata.name=one").items
    assert [manifest["metadata"]["name"] for manifest in chosen] == ["one"]  # type: ignore[index, call-overload]


def test_a_watch_that_begins_at_a_list_misses_nothing(api: KubernetesApi, server: ApiServer) -> None:
    api.create(pod("before"))
    since = api.find(POD, "train").version
    api.create(pod("behind"))
    api.delete(POD, "before", "train")
    seen = []
    for change in api.watch(POD, "train", since=since):
        seen.append((change.what, change.object["metadata"]["name"]))  # type: ignore[index, call-overload]
        if len(seen) == 2:
            break
    assert seen == [("ADDED", "behind"), ("DELETED", "before")]
    server.forget_history()
    with pytest.raises(GoneError):
        list(api.watch(POD, "train", since=since))


def test_logs_come_line_by_line_and_a_cut_gives_no_half_line(api: KubernetesApi, server: ApiServer) -> None:
    for number in range(10):
        server.say("train", "one", "pytorch", f"2026-11-15T12:00:0{number}.000000000Z", f"step {number}")
    server.end_log("train", "one", "pytorch")
    every = list(api.logs("one", "train", "pytorch", follow=True))
    assert [line.split(" ", 1)[1] for line in every] == [f"step {n}" for n in range(10)]
    assert len(list(api.logs("one", "train", "pytorch", since="2026-11-15T12:00:07Z"))) == 3
    assert len(list(api.logs("one", "train", "pytorch", tail=4))) == 4
    server.log("train", "one", "pytorch").cuts = [5]
    seen: list[str] = []
    with pytest.raises(UnreachableError):
        seen.extend(api.logs("one", "train", "pytorch", follow=True))  # what came before the cut stays
    assert seen == every[: len(seen)]
    assert len(seen) < 5


def test_a_command_in_a_pod_gets_bytes_and_gives_bytes_and_its_code(
    api: KubernetesApi, server: ApiServer
) -> None:
    data = bytes(range(256)) * 1000
    server.exec = lambda _pod, command, stdin: (3, stdin[::-1], " ".join(command).encode())
    ran = api.run("one", "train", "main", ["head", "-c", str(len(data))], stdin=data)
    assert (ran.code, ran.stdout) == (3, data[::-1])
    assert ran.stderr == f"head -c {len(data)}".encode()
    server.exec = lambda _pod, _command, _stdin: (0, b"", b"")
    assert api.run("one", "train", "main", ["true"]).code == 0


def test_a_command_whose_connection_is_cut_is_unreachable(api: KubernetesApi, server: ApiServer) -> None:
    def die(_pod: str, _command: list[str], _stdin: bytes) -> tuple[int, bytes, bytes]:
        raise ConnectionAbortedError

    server.exec = die
    with pytest.raises(UnreachableError):
        api.run("one", "train", "main", ["sleep", "1"])


def test_a_command_without_output_is_given_up(
    api: KubernetesApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(kubernetes_api, "_QUIET_S", 0.3)
    monkeypatch.setattr(kubernetes_api, "_POLL_S", 0.05)
    over = Event()
    server.exec = lambda _pod, _command, _stdin: (int(over.wait(60)), b"", b"")
    try:
        with wording.raises(UnreachableError):
            api.run("one", "train", "main", ["sleep", "1"])
    finally:
        over.set()


def test_a_server_that_takes_a_command_and_never_answers_is_given_up(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(kubernetes_api, "_ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server.url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        reached = connect(server.kubeconfig(tmp_path / "kubeconfig"))
        with wording.raises(UnreachableError):
            reached.run("one", "train", "main", ["true"])
        reached.close()


def test_a_password_in_the_address_is_used_and_not_shown(server: ApiServer, tmp_path: Path) -> None:
    server.url = server.url.replace("http://", "http://me:s3cr3tvalue@")
    reached = connect(server.kubeconfig(tmp_path / "kubeconfig"))
    assert reached.find(POD).items == ()
    server.drop_next = 1
    with pytest.raises(UnreachableError) as caught:
        reached.find(POD)
    assert "s3cr3tvalue" not in f"{caught.value.what} {reached.server}"
    reached.close()


def test_permissions_and_served_kinds_are_read(api: KubernetesApi, server: ApiServer) -> None:
    server.allowed = lambda verb, _group, resource: (verb, resource) == ("create", "rayjobs")
    assert api.may("create", RAY_JOB, "train")
    assert not api.may("delete", RAY_JOB, "train")
    server.served -= {PYTORCH_JOB}
    assert api.serves(RAY_JOB)
    assert api.serves(CONFIG_MAP)
    assert not api.serves(PYTORCH_JOB)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (403, "Forbidden", 'pods is forbidden: User "me" cannot create', ForbiddenError),
        (403, "Forbidden", 'pods is forbidden: User "system:anonymous" cannot create', UnauthorizedError),
        (403, "Forbidden", "exceeded quota: gpus, requested: 8, used: 8, limited: 8", RefusedError),
        (422, "Invalid", "spec.replicas: Invalid value", RefusedError),
        (400, "BadRequest", 'strict decoding error: unknown field "spec.replcas"', RefusedError),
        (500, "InternalError", "failed calling webhook", UnreachableError),
        (503, "ServiceUnavailable", "apiserver not ready", UnreachableError),
    ],
)
def test_every_refusal_has_its_own_error_class(
    status: int, reason: str, message: str, kind: type[ApiError], api: KubernetesApi, server: ApiServer
) -> None:
    server.rules = [lambda verb, _kind, _what: (status, reason, message) if verb == "create" else None]
    with pytest.raises(kind) as caught:
        api.create(pod("one"))
    assert (caught.value.status, caught.value.reason) == (status, reason)
    assert message in caught.value.what
    assert caught.value.hint
    assert server.of(POD) == []


def test_a_name_that_is_taken_and_a_token_that_is_too_old(
    api: KubernetesApi, server: ApiServer, wording: Wording
) -> None:
    api.create(pod("one"))
    with wording.raises(ConflictError):
        api.create(pod("one"))
    server.is_closed_to = True
    with wording.raises(UnauthorizedError) as caught:
        api.find(POD)
    assert "token" not in caught.value.what


def test_a_server_that_is_not_there_or_hangs_up_is_unreachable(api: KubernetesApi, server: ApiServer) -> None:
    server.drop_next = 1
    with pytest.raises(UnreachableError):
        api.find(POD)
    assert api.find(POD).items == ()


def test_no_kubeconfig_is_one_clear_error(tmp_path: Path, wording: Wording) -> None:
    with wording.raises(NotReadyError):
        connect(tmp_path / "nothing")
    with wording.raises(NotReadyError):
        connect(None)


def test_a_watch_that_ends_in_the_middle_of_a_token_was_cut(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setattr(api, "_stream", lambda *_: iter([b'{"type": "ADD']))
    with wording.raises(UnreachableError):
        list(api.watch(POD, "train", since="1"))
