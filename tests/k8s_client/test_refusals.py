"""Refusals recorded on a real API server: which of them lack a right, and which refuse the object."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.recordings import ROOT
from tests.fixtures.wording import Wording
from tests.k8s_client.test_job_kinds import job_request, send

from paceline.core.errors import ExitCode
from paceline.k8s.client.api import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotThereError,
    RefusedError,
    UnauthorizedError,
    error_from_status,
)
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.kinds import TRAIN_JOB, TRAINING_RUNTIME, Kind
from paceline.k8s.rbac import Right, grant
from paceline.k8s.submit.manifests import render_job
from paceline.k8s.submit.submission import dry_run

Object = dict[str, Any]
_FOLDERS = ("trainjob-without-runtime", "rbac-refusals", "pod-security-answers", "stream-errors")


def recorded() -> Iterator[tuple[str, ApiError]]:
    """(the server's sentence, what it is for us) of every recorded refusal that has a Status."""
    for folder in _FOLDERS:
        for answer in json.loads((ROOT / folder / "answers.json").read_text()):
            if answer["status"] >= 400 and isinstance(answer["body"], dict):
                yield (
                    answer["body"]["message"],
                    error_from_status(answer["status"], answer["body"], answer["request"], "https://k"),
                )


def test_only_a_missing_right_is_reported_as_one() -> None:
    by_user = [error for message, error in recorded() if 'User "system:serviceaccount' in message]
    assert len(by_user) > 20
    assert {type(error) for error in by_user} == {ForbiddenError}
    others = [
        (message, error) for message, error in recorded() if error.status == 403 and 'User "' not in message
    ]
    assert {type(error) for _, error in others} == {RefusedError}
    text = " ".join(message for message, _ in others)
    for source in ("admission webhook", "exceeded quota", "failed quota", "violates PodSecurity"):
        assert source in text


def test_the_hint_of_a_missing_right_is_the_role_and_the_binding_that_grant_it() -> None:
    (error,) = [
        e for text, e in recorded() if 'patch resource "jobs"' in text and isinstance(e, ForbiddenError)
    ][:1]
    stated = json.loads(error.hint.split("echo '")[1].split("' | kubectl")[0])
    role, binding = stated["items"]
    assert role["rules"] == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["patch"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    space = "rec-rbac-refusals"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "outsider", "namespace": space}]
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {space}


def test_a_right_of_the_whole_cluster_is_granted_by_a_cluster_role() -> None:
    stated = grant([Right("list", "nodes", is_namespaced=False)], "train", "o'brien")
    assert "ClusterRoleBinding" in stated
    assert "namespace" not in stated
    assert """o'"'"'brien""" in stated  # quoted for a shell


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (403, 'pods "x" is forbidden: no PriorityClass with name high was found', RefusedError),
        (403, 'pods "x" is forbidden: error looking up service account a/b: not found', RefusedError),
        (403, 'pods "x" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]', RefusedError),
        (403, 'roles "x" is forbidden: user "u" (groups=[]) is attempting to grant RBAC', ForbiddenError),
        (403, 'pods is forbidden: User "u" cannot list resource "pods" in API group ""', ForbiddenError),
        (400, 'admission webhook "validate.kyverno.svc" denied the request: no latest', RefusedError),
        (413, "Request entity too large: limit is 3145728", RefusedError),
        (401, "Unauthorized", UnauthorizedError),
        (404, 'pods "x" not found', NotThereError),
        (409, 'pods "x" already exists', ConflictError),
    ],
)
def test_the_source_of_a_refusal_is_read_from_its_sentence(status: int, text: str, kind: type) -> None:
    error = error_from_status(status, {"reason": "Forbidden", "message": text}, "POST /x", "https://k")
    assert type(error) is kind


# A TrainJob is refused until its runtime is there, by a dry run too.


def test_a_trainjob_is_sent_behind_its_own_runtime(cluster: ClusterConnection, server: ApiServer) -> None:
    assert send(cluster, TRAIN_JOB).made == ("TrainingRuntime/demo",)
    assert [len(server.of(kind)) for kind in (TRAINING_RUNTIME, TRAIN_JOB)] == [1, 1]


def test_a_refused_trainjob_takes_its_runtime_back_and_leaves_that_of_others(
    cluster: ClusterConnection, server: ApiServer, wording: Wording
) -> None:
    about = {"name": "of-others", "namespace": "train"}
    head = {"apiVersion": TRAINING_RUNTIME.api_version, "kind": TRAINING_RUNTIME.name}
    server.put({**head, "metadata": about, "spec": {}})
    message = 'admission webhook "policy.example.com" denied the request: the team label is missing'

    def refuse(verb: str, kind: Kind, _what: Object) -> tuple[int, str, str] | None:
        return (403, "Forbidden", message) if (verb, kind) == ("create", TRAIN_JOB) else None

    server.rules.append(refuse)
    with wording.raises(RefusedError) as refused:
        send(cluster, TRAIN_JOB)
    assert refused.value.exit_code is ExitCode.BAD_CONFIG
    assert "policy.example.com" in refused.value.hint
    assert [manifest["metadata"]["name"] for manifest in server.of(TRAINING_RUNTIME)] == ["of-others"]
    assert server.of(TRAIN_JOB) == []


def test_a_webhook_that_does_not_see_the_new_runtime_yet_is_called_again(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    """It reads through a cache that is a moment behind."""
    requests = []

    def late(verb: str, kind: Kind, _what: Object) -> tuple[int, str, str] | None:
        if (verb, kind) != ("create", TRAIN_JOB):
            return None
        requests.append(verb)
        message = 'admission webhook "v" denied the request: TrainingRuntime "demo" not found'
        return (403, "Forbidden", message) if len(requests) == 1 else None

    server.rules.append(late)
    send(cluster, TRAIN_JOB)
    assert len(server.of(TRAIN_JOB)) == 1


def test_a_dry_run_of_a_file_with_its_own_runtime_creates_nothing_and_refuses_nothing(
    cluster: ClusterConnection, server: ApiServer
) -> None:
    manifests = json.loads(json.dumps(render_job(*job_request(TRAIN_JOB)).objects))
    assert dry_run(cluster, manifests).runtime_missing == ("TrainJob/demo",)
    assert server.writes == []
