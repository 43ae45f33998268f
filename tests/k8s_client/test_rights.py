"""The one list of rights: a service account with exactly these rights runs a job of each kind, and with any
required one less it is told which.

Roles and bindings are those of `cluster fix`. The API server of the tests enforces them for every request.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import Gang
from tests.fixtures.waiting import until
from tests.k8s_client.test_job_kinds import TARGETS, send
from tests.k8s_client.watched import follow

from paceline.core.errors import ExitCode
from paceline.k8s.check import checks
from paceline.k8s.check.cluster import take_snapshot
from paceline.k8s.check.findings import Level, Need
from paceline.k8s.client.api import ForbiddenError
from paceline.k8s.client.connection import ClusterConnection
from paceline.k8s.client.kubernetes_api import KubernetesApi, connect
from paceline.k8s.fix.plan import identity_manifests
from paceline.k8s.kinds import (
    JOB,
    JOB_KINDS,
    PYTORCH_JOB,
    RAY_JOB,
    ROLE,
    ROLE_BINDING,
    TRAIN_JOB,
    TRAINING_RUNTIME,
    Kind,
)
from paceline.k8s.rbac import (
    CLUSTER_RIGHTS,
    Right,
    all_rights_for,
    grant,
    rendered_rights_for,
    role_and_binding,
)
from paceline.k8s.spec.job import Target
from paceline.k8s.submit.job_objects import list_labelled_jobs
from paceline.k8s.submit.jobs import explain_live, job_logs, job_status, list_jobs, stop_job
from paceline.k8s.submit.submission import RightsError

Object = dict[str, Any]
KINDS = (JOB, PYTORCH_JOB, TRAIN_JOB, RAY_JOB)
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
USER = "system:serviceaccount:train:runner"
REQUIRED = [
    pytest.param(kind, right, id=f"{kind.name}: {right.key}")
    for kind in KINDS
    for right in rendered_rights_for(kind.resource)
    if right.is_required
]
# Read while a job of the kind is followed and started again.
CHILDREN = {
    TRAIN_JOB: {"list jobsets.jobset.x-k8s.io", "get jobsets.jobset.x-k8s.io", "list jobs.batch"},
    RAY_JOB: {"list rayclusters.ray.io", "list jobs.batch", "get jobs.batch"},
}
every_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


@pytest.fixture
def runner(server: ApiServer, tmp_path: Path) -> Iterator[KubernetesApi]:
    """The account, without any right yet."""
    reached = connect(server.kubeconfig(tmp_path / "runner", server.account_token("runner")))
    yield reached
    reached.close()


def give(server: ApiServer, rights: list[Right]) -> None:
    """As an administrator does; replaces what was given before."""
    about = {"kind": "ServiceAccount", "name": "runner", "namespace": "train"}
    for manifest in role_and_binding("runner", rights, "train", about):
        server.put(json.loads(json.dumps(manifest)))


def apply(server: ApiServer, command: str) -> None:
    """What the administrator's shell does with a printed grant."""
    echo, stated, *piped = shlex.split(command)
    assert (echo, piped) == ("echo", ["|", "kubectl", "apply", "-f", "-"])
    for manifest in json.loads(stated)["items"]:
        if manifest["kind"].startswith("Cluster"):
            server.bindings.apply(manifest)
        else:
            server.put(manifest)


def granted_in(hint: str) -> list[Object]:
    role, binding = json.loads(shlex.split(hint[hint.index("echo ") :])[1])["items"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "runner", "namespace": "train"}]
    return list(role["rules"])


def rule_of(right: Right) -> Object:
    return {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}


def run_one(cluster: ClusterConnection, server: ApiServer, kind: Kind) -> None:
    """Submit, status, explain, list, follow, a second attempt on lost nodes, logs, stop."""
    assert send(cluster, kind).kind == kind.name
    gang = Gang(server, kind)
    gang.run()
    gang.say("step 1")
    assert len(job_status(cluster, "demo").pods) == len(gang.pods)
    assert explain_live(cluster, "demo").finding is None
    assert [row["name"] for row in list_jobs(cluster, everywhere=False)] == ["demo"]
    gang.lose_node()
    follower = follow(cluster)
    until(lambda: "attempt 2 is submitted" in follower.screen.said, "the second attempt is there")
    second = Gang(server, kind)
    second.run()
    second.succeed()
    result = follower.end()
    assert result.end is not None
    assert (result.end.code, result.attempt) == (ExitCode.OK, 2)
    assert list(job_logs(cluster, "demo", None, None))
    assert stop_job(cluster, "demo")[0] == f"{kind.name}/demo"


def denied(server: ApiServer, *namespaces: str) -> set[str]:
    return {
        requested.key
        for _, requested, is_allowed in server.decided
        if not is_allowed and requested.namespace in namespaces
    }


@every_kind
def test_an_account_with_the_rights_of_cluster_fix_runs_a_job_to_its_end(
    server: ApiServer, runner: KubernetesApi, kind: Kind
) -> None:
    for manifest in identity_manifests("runner", "train", Target(TARGETS[kind].value)):
        server.put(json.loads(json.dumps(manifest)))
    apply(server, grant(CLUSTER_RIGHTS, "train", USER))
    run_one(ClusterConnection(runner, "train"), server, kind)
    other_kinds = {f"{verb} {other.resource}" for other in JOB_KINDS for verb in ("get", "list")}
    other_kinds -= CHILDREN.get(kind, set())
    assert denied(server, "train") <= other_kinds
    # The ConfigMaps of operators tell their versions; a Role in their namespaces is not asked for.
    assert denied(server, "kubeflow-system", "kube-system") <= {"get configmaps"}
    assert denied(server, "") == set()


@every_kind
def test_the_required_rights_alone_are_enough_to_run_a_job(
    server: ApiServer, runner: KubernetesApi, kind: Kind
) -> None:
    give(server, [right for right in rendered_rights_for(kind.resource) if right.is_required])
    cluster = ClusterConnection(runner, "train")
    assert any("not" in note for note in send(cluster, kind).notes)
    gang = Gang(server, kind)
    gang.run()
    follower = follow(cluster)
    gang.succeed()
    result = follower.end()
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert explain_live(cluster, "demo").finding is None
    assert list_jobs(cluster, everywhere=False)
    assert stop_job(cluster, "demo")[0] == f"{kind.name}/demo"
    assert server.of(kind) + server.of(TRAINING_RUNTIME) == []


@pytest.mark.parametrize(("kind", "missing"), REQUIRED)
def test_a_required_right_that_is_missing_is_named_before_anything_is_created(
    server: ApiServer, runner: KubernetesApi, kind: Kind, missing: Right
) -> None:
    give(server, [right for right in all_rights_for(kind.resource) if right != missing])
    with pytest.raises(RightsError) as refused:
        send(ClusterConnection(runner, "train"), kind)
    (problem,) = refused.value.problems
    assert missing.key in problem.what
    assert "namespace train" in problem.what
    assert granted_in(problem.hint) == [rule_of(missing)]
    assert server.of(kind) == []
    apply(server, problem.hint[problem.hint.index("echo ") :])
    assert send(ClusterConnection(runner, "train"), kind).kind == kind.name, "what was advised is enough"


@contextmanager
def without(server: ApiServer, right: Right) -> Iterator[None]:
    everything = all_rights_for(JOB.resource)
    give(server, [item for item in everything if item != right])
    yield
    give(server, everything)


def test_each_command_names_the_right_that_was_taken_away_after_submission(
    server: ApiServer, runner: KubernetesApi
) -> None:
    cluster = ClusterConnection(runner, "train")
    give(server, all_rights_for(JOB.resource))
    send(cluster, JOB)
    Gang(server, JOB).run()
    commands: dict[Right, Callable[[], object]] = {
        Right("get", "jobs", "batch"): lambda: job_status(cluster, "demo"),
        Right("list", "pods"): lambda: explain_live(cluster, "demo"),
        Right("list", "events"): lambda: explain_live(cluster, "demo"),
        Right("list", "jobs", "batch"): lambda: list_labelled_jobs(runner, "train"),
        Right("get", "pods/log"): lambda: list(job_logs(cluster, "demo", None, None)),
        Right("delete", "jobs", "batch"): lambda: stop_job(cluster, "demo"),
    }
    for right, command in commands.items():
        with without(server, right), pytest.raises(ForbiddenError) as refused:
            command()
        assert granted_in(refused.value.hint) == [rule_of(right)]
    assert server.of(JOB)


@every_kind
def test_reviews_of_rights_agree_with_what_is_refused(
    server: ApiServer, runner: KubernetesApi, kind: Kind
) -> None:
    """`cluster check` reads the list of rules, the pre-flight asks one by one."""
    target = Target(TARGETS[kind].value)
    lacks = Right("delete", kind.plural, kind.group)
    rights = all_rights_for(kind.resource)
    give(server, [right for right in rights if right != lacks])
    apply(server, grant(CLUSTER_RIGHTS, "train", USER))
    seen = take_snapshot(runner, "train", target)
    assert [key for key in (right.key for right in rights) if seen.rights.get(key) is False] == [lacks.key]
    assert seen.user == USER
    (result,) = [
        manifest
        for manifest in checks.run_checks(seen, Need(target=target)).of(Level.PROBLEM)
        if manifest.area == "rights"
    ]
    assert granted_in(result.command) == [rule_of(lacks)]
    for right in rights:
        of = Kind("", right.resource, group=right.group)
        assert runner.may(right.verb, of, "train") is (right != lacks), right.key
        assert not runner.may(right.verb, of, "elsewhere"), "a Role counts in its namespace only"


def test_an_optional_right_that_is_missing_is_a_note_of_cluster_check(
    server: ApiServer, runner: KubernetesApi
) -> None:
    give(server, [right for right in rendered_rights_for(JOB.resource) if right.is_required])
    seen = take_snapshot(runner, "train", Target.JOB)
    findings = [
        finding
        for finding in checks.run_checks(seen, Need(target=Target.JOB)).findings
        if finding.area == "rights"
    ]
    (note,) = [finding for finding in findings if finding.level is Level.NOTE]
    assert "create configmaps" in note.evidence
    assert not [finding for finding in findings if finding.level is Level.PROBLEM]
    apply(server, note.command)
    again = take_snapshot(runner, "train", Target.JOB)
    assert all(again.rights[right.key] for right in rendered_rights_for(JOB.resource))


def test_an_account_without_a_binding_may_do_nothing(server: ApiServer, runner: KubernetesApi) -> None:
    give(server, all_rights_for(JOB.resource))
    server.remove(ROLE_BINDING, "runner", "train")
    assert server.of(ROLE)
    with pytest.raises(RightsError) as refused:
        send(ClusterConnection(runner, "train"), JOB)
    apply(server, refused.value.problems[0].hint.partition("grants it by: ")[2])
    assert send(ClusterConnection(runner, "train"), JOB).kind == "Job"


def test_the_guide_shows_the_role_and_the_binding_that_are_created() -> None:
    text = GUIDE.read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    shown = [manifest for block in blocks for manifest in yaml.safe_load_all(block)]
    subject = {"kind": "ServiceAccount", "name": "runner", "namespace": "train"}
    _, role, binding = json.loads(json.dumps(identity_manifests("runner", "train", Target.JOB)))
    for manifest in (role, binding):
        del manifest["metadata"]["labels"]
        assert manifest in shown
    for manifest in role_and_binding("paceline-look", CLUSTER_RIGHTS, "", subject):
        assert manifest in shown
    for right in rendered_rights_for(JOB.resource):
        assert (f"| `{right.key}` | {right.why} |" in text) is right.is_required
