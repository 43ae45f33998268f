"""`paceline cluster deploy`: renders a folder, applies it to a server, and refuses bad options."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.kubernetes.api_server import ApiServer, Refusal
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import (
    DISRUPTION_BUDGET,
    NAMESPACE,
    NETWORK_POLICY,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    Kind,
)
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
IMAGE = ["-n", "train", "--image", "example.com/paceline:1"]
KEYS = ["ca.crt", *(f"node-{node}.{end}" for node in (1, 2, 3) for end in ("crt", "key"))]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        running.kubeconfig(tmp_path / "config")
        running.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
        yield running


def keys(server: ApiServer, names: list[str] = KEYS) -> None:
    about = {"name": "paceline-coordinator-pki", "namespace": "train"}
    data = dict.fromkeys(names, "Z29vZA==")
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": about, "data": data})


def deploy(folder: Path, *words: str) -> ExitCode:
    return ExitCode(run(["cluster", "deploy", *words], Session(folder=folder)))


def applied(folder: Path, capsys: Captured, *words: str) -> list[str]:
    common = ["apply", "coordinator", "--kubeconfig", "config", "--json", *IMAGE]
    assert deploy(folder, *common, *words) == ExitCode.OK
    rows: Any = json.loads(capsys.readouterr().out)["data"]["objects"]
    return [row["state"] for row in rows]


def test_a_folder_for_kustomize_is_written(tmp_path: Path, capsys: Captured) -> None:
    assert deploy(tmp_path, "render", "coordinator", *IMAGE, "--out", "there") == ExitCode.OK
    captured = capsys.readouterr()
    assert "kubectl apply -k there" in captured.out
    assert "first: paceline coordinator init-pki --out pki --node 1=" in captured.err
    listed = yaml.safe_load((tmp_path / "there" / "kustomization.yaml").read_text())["resources"]
    results = {path.name for path in (tmp_path / "there").iterdir()}
    assert results == {"kustomization.yaml", *listed}
    kinds = [yaml.safe_load((tmp_path / "there" / name).read_text())["kind"] for name in listed]
    assert kinds == ["Service", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet"]


def test_what_is_printed_can_be_validated(tmp_path: Path, capsys: Captured) -> None:
    assert deploy(tmp_path, "render", "coordinator", *IMAGE) == ExitCode.OK
    (tmp_path / "all.yaml").write_text(capsys.readouterr().out)
    assert run(["job", "validate", str(tmp_path / "all.yaml")], Session(folder=tmp_path)) == ExitCode.OK


def test_it_is_applied_once(server: ApiServer, tmp_path: Path, capsys: Captured) -> None:
    keys(server)
    assert applied(tmp_path, capsys, "--dry-run") == ["would be created"] * 4
    assert server.writes == []
    assert applied(tmp_path, capsys) == ["created"] * 4
    for kind in (SERVICE, NETWORK_POLICY, DISRUPTION_BUDGET, STATEFUL_SET):
        assert [manifest["metadata"]["name"] for manifest in server.of(kind)] == ["paceline-coordinator"]
    assert len(server.writes) == 4
    assert applied(tmp_path, capsys) == ["there"] * 4
    assert len(server.writes) == 4, "a second run writes nothing"


def test_a_new_image_changes_one_object(server: ApiServer, tmp_path: Path, capsys: Captured) -> None:
    keys(server)
    applied(tmp_path, capsys)
    again = ["--image", "example.com/paceline:2"]
    assert applied(tmp_path, capsys, *again, "--dry-run") == ["there", "there", "there", "would be changed"]
    assert len(server.writes) == 4
    assert applied(tmp_path, capsys, *again) == ["there", "there", "there", "changed"]
    (result,) = server.of(STATEFUL_SET)
    assert result["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/paceline:2"
    assert len(server.writes) == 5


def test_the_number_of_nodes_is_not_changed_behind_their_back(
    server: ApiServer, tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    more = [*KEYS, *(f"node-{node}.{end}" for node in (4, 5) for end in ("crt", "key"))]
    keys(server, more)
    applied(tmp_path, capsys)
    words = ["apply", "coordinator", "--kubeconfig", "config", *IMAGE, "--replicas", "5"]
    assert deploy(tmp_path, *words) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
    assert len(server.writes) == 4


@pytest.mark.parametrize(
    ("held", "missing"),
    [(None, "Secret paceline-coordinator-pki"), (KEYS[:-1], "node-3.key")],
    ids=["no secret", "no key of node 3"],
)
def test_without_certificates_nothing_is_made(
    held: list[str] | None,
    missing: str,
    server: ApiServer,
    tmp_path: Path,
    capsys: Captured,
    wording: Wording,
) -> None:
    if held is not None:
        keys(server, held)
    code = deploy(tmp_path, "apply", "coordinator", "--kubeconfig", "config", *IMAGE)
    assert code == ExitCode.NOT_READY
    stderr = capsys.readouterr().err
    assert missing in stderr
    assert "coordinator init-pki" in stderr
    wording(stderr)
    assert server.writes == []


def test_without_a_namespace_nothing_is_made(server: ApiServer, tmp_path: Path, capsys: Captured) -> None:
    server.remove(NAMESPACE, "train")
    code = deploy(tmp_path, "apply", "coordinator", "--kubeconfig", "config", *IMAGE)
    assert code == ExitCode.NOT_READY
    assert "cluster fix -n train --only namespace" in capsys.readouterr().err


def test_a_user_who_may_not_read_secrets_may_still_deploy(
    server: ApiServer, tmp_path: Path, capsys: Captured
) -> None:
    def hidden(verb: str, kind: Kind, _what: dict[str, Any]) -> Refusal | None:
        return (403, "Forbidden", "no") if verb == "get" and kind in (SECRET, NAMESPACE) else None

    server.rules.append(hidden)
    assert applied(tmp_path, capsys) == ["created"] * 4


def test_what_the_server_refuses_is_known_before_the_first_write(
    server: ApiServer, tmp_path: Path, capsys: Captured
) -> None:
    def no_sets(verb: str, kind: Kind, _what: dict[str, Any]) -> Refusal | None:
        return (
            (403, "Forbidden", "exceeded quota: team") if kind == STATEFUL_SET and verb == "create" else None
        )

    keys(server)
    server.rules.append(no_sets)
    code = deploy(tmp_path, "apply", "coordinator", "--kubeconfig", "config", *IMAGE)
    assert code == ExitCode.BAD_CONFIG
    assert "exceeded quota" in capsys.readouterr().err
    assert server.writes == []
