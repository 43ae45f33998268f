"""`paceline cluster fix` applies its plan once, and undoes it. Against a server over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.wording import Wording
from tests.k8s import clusters
from tests.k8s_client.served import serve

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import (
    CLAIM,
    NAMESPACE,
    POD,
    RAY_CLUSTER,
    RAY_JOB,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from paceline.k8s.transfer.pod_manifest import HelperRequest, helper_pod
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
HELM = Path(__file__).parent.parent / "fixtures" / "kubernetes" / "helm.sh"
TOKEN = "hf_" + "s3cret" * 6
SAFE = ["--claim", "data=10Gi", "--account", "runner", "--hf-token"]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        cluster = clusters.auto_mode()
        cluster["objects"]["namespaces"] = []
        serve(running, cluster)
        running.served |= {ROLE, ROLE_BINDING, SECRET, SERVICE_ACCOUNT}
        yield running


@pytest.fixture
def place(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kubeconfig, a login at Hugging Face, and a helm on the path."""
    server.kubeconfig(tmp_path / "config")
    (tmp_path / "hf").write_text(TOKEN + "\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(HELM)
    (tmp_path / "releases").mkdir()
    (tmp_path / "calls").touch()
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "hf"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("STATE", str(tmp_path / "releases"))
    return tmp_path


def fix(place: Path, *words: str) -> ExitCode:
    common = ["cluster", "fix", "--kubeconfig", "config", "--json"]
    return ExitCode(run([*common, *words], Session(folder=place)))


def fixed(place: Path, capsys: Captured, *words: str) -> Any:
    assert fix(place, "-n", "train", *words) == ExitCode.OK
    return json.loads(capsys.readouterr().out)["data"]


def calls(place: Path, verb: str) -> list[str]:
    return [line for line in (place / "calls").read_text().splitlines() if line.startswith(verb)]


def made(server: ApiServer) -> list[str]:
    kinds = (NAMESPACE, CLAIM, SECRET, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)
    return [manifest["metadata"]["name"] for kind in kinds for manifest in server.of(kind)]


def test_safe_fixes_are_made_once_and_taken_back(server: ApiServer, place: Path, capsys: Captured) -> None:
    first = fixed(place, capsys, *SAFE)
    assert [item["state"] for item in first["fixes"]] == ["done"] * 6
    assert made(server) == ["train", "data", "hf-token", "runner", "paceline-job", "paceline-job-runner"]
    assert len(server.writes) == 6
    second = fixed(place, capsys, *SAFE)
    assert len(server.writes) == 6, "a second run writes nothing"
    assert second["id"] is None
    assert {item["state"] for item in second["fixes"]} == {"there"}
    taken = fixed(place, capsys, "--undo", first["id"])
    assert all(step["undone"] for step in taken["steps"])
    assert made(server) == []
    writes = len(server.writes)
    assert fixed(place, capsys, "--undo", first["id"])["steps"] == []
    assert len(server.writes) == writes


@pytest.mark.parametrize("name", clusters.CLUSTERS)
def test_every_kind_of_cluster_gets_what_was_requested_and_nothing_else(
    name: str, place: Path, capsys: Captured
) -> None:
    with ApiServer().running() as server:
        serve(server, clusters.CLUSTERS[name]())
        server.kubeconfig(place / "config")
        assert fixed(place, capsys, "--apply")["fixes"] == []
        assert server.writes == []
        requests = ["--apply", "--claim", "data=1Gi"]
        assert [item["state"] for item in fixed(place, capsys, *requests)["fixes"]] == ["done"]
        assert len(server.writes) == 1
        assert fixed(place, capsys, *requests)["fixes"] == []
        assert len(server.writes) == 1
    assert calls(place, "upgrade") == []


def test_before_and_after_are_kept_without_the_secret(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    answer = fixed(place, capsys, *SAFE)
    folder = place / "runs" / "fixes" / answer["id"]
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == ["01-namespace.after.yaml", "01-namespace.before.yaml"]
    assert len(names) == 13
    text = "".join(path.read_text() for path in folder.iterdir())
    assert "uid:" in text
    assert TOKEN not in text + json.dumps(answer)
    assert server.of(SECRET)[0]["stringData"] == {"token": TOKEN}


def test_a_dry_run_validates_on_the_server_and_writes_nothing(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
    answer = fixed(place, capsys, "--dry-run", *SAFE)
    assert {item["state"] for item in answer["fixes"]} == {"would"}
    assert server.writes == []
    assert len([item for item in server.asked if "dryRun" in item.query]) == 5
    assert not (place / "runs").exists()


def test_what_the_server_would_refuse_stops_everything_before_the_first_write(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    def no_roles(verb: str, kind: Kind, _what: dict[str, Any]) -> Refusal | None:
        refused = kind == ROLE and verb == "create"
        return (403, "Forbidden", "attempt to grant extra privileges") if refused else None

    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
    server.rules.append(no_roles)
    assert fix(place, "-n", "train", *SAFE) == ExitCode.NOT_READY
    assert server.writes == []
    assert "extra privileges" in capsys.readouterr().out


def test_what_was_done_before_a_failure_is_known_and_taken_back(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    def no_roles(verb: str, kind: Kind, _what: dict[str, Any]) -> Refusal | None:
        return (403, "Forbidden", "no") if kind == ROLE and verb == "create" else None

    server.rules.append(no_roles)  # the namespace is yet to come, so this is seen late
    assert fix(place, "-n", "train", *SAFE) == ExitCode.NOT_READY
    assert made(server) == ["train", "data", "hf-token", "runner"]
    capsys.readouterr()
    (record,) = (place / "runs" / "fixes").iterdir()
    fixed(place, capsys, "--undo", record.name)
    assert made(server) == []


def test_undo_leaves_data_and_what_others_made(
    server: ApiServer, place: Path, capsys: Captured, wording: Wording
) -> None:
    answer = fixed(place, capsys, *SAFE)
    server.change(CLAIM, "data", "train", status={"phase": "Bound"})
    server.remove(SERVICE_ACCOUNT, "runner", "train")
    about = {"name": "runner", "namespace": "train"}
    server.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})  # created by another tool
    steps = {step["object"]: step for step in fixed(place, capsys, "--undo", answer["id"])["steps"]}
    for name in ("data", "runner", "train"):
        assert not steps[name]["undone"]
        wording(steps[name]["why"])
    assert made(server) == ["train", "data", "runner"]


def test_a_user_who_may_create_but_not_read_secrets_is_supported(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    def hidden(verb: str, kind: Kind, _what: dict[str, Any]) -> Refusal | None:
        return (403, "Forbidden", "no") if kind == SECRET and verb == "get" else None

    server.rules.append(hidden)
    assert fixed(place, capsys, *SAFE)["fixes"][2]["state"] == "done"
    writes = len(server.writes)
    assert fixed(place, capsys, *SAFE)["fixes"][2]["state"] == "there"
    assert len(server.writes) == writes


def test_what_was_kept_is_taken_back_once_it_may_be(server: ApiServer, place: Path, capsys: Captured) -> None:
    answer = fixed(place, capsys, *SAFE)
    server.change(CLAIM, "data", "train", status={"phase": "Bound"})
    fixed(place, capsys, "--undo", answer["id"])
    assert made(server) == ["train", "data"]
    server.remove(CLAIM, "data", "train")
    fixed(place, capsys, "--undo", answer["id"])
    assert made(server) == []


def test_finished_helper_pods_are_removed(
    server: ApiServer, place: Path, capsys: Captured, wording: Wording
) -> None:
    """Helper pods of `data upload` and `job results` whose command ended before it removed them."""
    helper_request = HelperRequest(namespace="train", claim="data")
    other: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "others", "namespace": "train"},
    }
    rows = [
        (helper_pod("done", helper_request), "Succeeded"),
        (helper_pod("at-work", helper_request), "Running"),
    ]
    for pod, phase in [*rows, (other, "Succeeded")]:
        server.put({**pod, "status": {"phase": phase}})
    labels = server.of(POD)[0]["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "paceline"
    assert labels["app.kubernetes.io/component"] == "helper"
    answer = fixed(place, capsys, "--only", "helpers")
    assert [manifest["metadata"]["name"] for manifest in server.of(POD)] == ["at-work", "others"]
    (step,) = fixed(place, capsys, "--undo", answer["id"])["steps"]
    assert not step["undone"]
    wording(step["why"])


def test_a_chart_waits_for_apply_and_is_installed_once(
    server: ApiServer, place: Path, capsys: Captured
) -> None:
    words = ["--target", "rayjob", "--only", "kuberay"]
    (shown,) = fixed(place, capsys, *words)["fixes"]
    assert (shown["state"], shown["tier"]) == ("waits", "planned")
    assert calls(place, "") == []
    first = fixed(place, capsys, "--apply", *words)
    assert [item["state"] for item in first["fixes"]] == ["done"]
    tried, result = calls(place, "upgrade")
    assert tried.endswith("--dry-run=server")
    assert "--version 1.7.0" in result
    assert "--atomic --wait" in result
    # The cluster looks as before, as long as the operator's kinds are not served: the release is there.
    assert [item["state"] for item in fixed(place, capsys, "--apply", *words)["fixes"]] == ["there"]
    server.served |= {RAY_JOB, RAY_CLUSTER}
    server.put({**_operator(), "apiVersion": "apps/v1", "kind": "Deployment"})
    assert fixed(place, capsys, "--apply", *words)["fixes"] == []
    assert len(calls(place, "upgrade")) == 2
    assert server.writes == []
    fixed(place, capsys, "--undo", first["id"])
    assert calls(place, "uninstall") == ["uninstall kuberay-operator --namespace ray-system --wait"]
    assert list((place / "releases").iterdir()) == []


def _operator() -> dict[str, Any]:
    return clusters.deployment("ray-system", "kuberay-operator", "quay.io/kuberay/operator:v1.7.0")


def test_an_older_release_is_rolled_back_to_what_it_was(place: Path, capsys: Captured) -> None:
    (place / "releases" / "kuberay-operator").write_text("kuberay-operator-1.3.0")
    answer = fixed(place, capsys, "--apply", "--target", "rayjob", "--only", "kuberay")
    folder = place / "runs" / "fixes" / answer["id"]
    assert "chart: kuberay-operator-1.3.0" in (folder / "01-kuberay.before.yaml").read_text()
    assert "chart: kuberay-operator-1.7.0" in (folder / "01-kuberay.after.yaml").read_text()
    fixed(place, capsys, "--undo", answer["id"])
    assert calls(place, "rollback") == ["rollback kuberay-operator 1 --namespace ray-system --wait"]


def test_a_release_that_was_upgraded_since_is_not_rolled_back(
    place: Path, capsys: Captured, wording: Wording
) -> None:
    answer = fixed(place, capsys, "--apply", "--target", "rayjob", "--only", "kuberay")
    (place / "releases" / "kuberay-operator.revision").write_text("2")
    (step,) = fixed(place, capsys, "--undo", answer["id"])["steps"]
    assert not step["undone"]
    assert "revision 2" in step["why"]
    wording(step["why"])
    assert calls(place, "uninstall") == []


def test_an_install_that_was_killed_is_taken_back(
    place: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("FAIL_ON", "--atomic")
        words = ["-n", "train", "--apply", "--target", "rayjob", "--only", "kuberay"]
        assert fix(place, *words) == ExitCode.NOT_READY
    (place / "releases" / "kuberay-operator").write_text("kuberay-operator-1.7.0")
    (place / "releases" / "kuberay-operator.status").write_text("pending-install")
    capsys.readouterr()
    (record,) = (place / "runs" / "fixes").iterdir()
    fixed(place, capsys, "--undo", record.name)
    assert calls(place, "uninstall") == ["uninstall kuberay-operator --namespace ray-system --wait"]


def test_a_chart_that_fails_is_one_error(
    place: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.setenv("FAIL_ON", "--atomic")
    words = ["-n", "train", "--apply", "--target", "rayjob", "--only", "kuberay"]
    assert fix(place, *words) == ExitCode.NOT_READY
    assert "on purpose" in capsys.readouterr().out
    monkeypatch.setenv("PATH", str(place))
    assert fix(place, *words) == ExitCode.NOT_READY
    (problem,) = json.loads(capsys.readouterr().out)["error"]["problems"]
    wording(problem["what"])


@pytest.mark.parametrize(
    "words",
    [
        ["--undo", "nothing"],
        ["--undo", "../config"],
        ["--undo", "x", "--dry-run"],
        ["--undo", "x", "--only", "claim"],
        ["--undo", "x", "--from", "seen.json"],
        ["--claim", "data"],
        ["--claim", "Data=1Gi"],
        ["--claim", "data=much"],
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], server: ApiServer, place: Path, capsys: Captured, wording: Wording
) -> None:
    assert fix(place, *words) == ExitCode.BAD_CONFIG
    (problem,) = json.loads(capsys.readouterr().out)["error"]["problems"]
    wording(problem["what"])
    assert server.writes == []


def test_a_missing_login_is_reported_without_calling_the_cluster(
    server: ApiServer, place: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", str(place / "none"))
    assert fix(place, "--hf-token") == ExitCode.NOT_READY
    assert "auth login" in capsys.readouterr().out
    assert server.asked == []
