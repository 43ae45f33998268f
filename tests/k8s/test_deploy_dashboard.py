"""The objects of a dashboard: strict, closed to other pods, and with the token only in a file."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.k8s.mutations import Mutation, at, misspell, mistype, paths_in

from paceline.cli.main import run
from paceline.core.errors import ConfigError, ExitCode
from paceline.k8s.deploy.apply import dashboard_files
from paceline.k8s.deploy.dashboard import PORT, Dashboard, access_commands, render, secret_commands
from paceline.k8s.kinds import DEPLOYMENT, NETWORK_POLICY
from paceline.k8s.spec.job import Profile
from paceline.k8s.validate.offline import find_problems, validate
from paceline.training.session import Session

Object = dict[str, Any]
ASKED = Dashboard(namespace="train", image="example.com/x:1", claim="output", token_secret="page")
MORE = Dashboard(
    namespace="train",
    image="example.com/x:1",
    claim="output",
    token_secret="page",
    path="sp500",
    pull_secret="registry",
    from_namespaces=("ingress-nginx",),
    hosts=("runs.example.com",),
)


def pod(dashboard: Dashboard = ASKED) -> Object:
    manifest: Any = render(dashboard)["deployment.yaml"]
    spec: Object = manifest["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("dashboard", [ASKED, MORE], ids=["plain", "more"])
def test_everything_is_valid_and_restricted(dashboard: Dashboard) -> None:
    for name, text in dashboard_files(dashboard).items():
        assert validate(text, name).problems == (), name
    assert [entry["kind"] for entry in render(dashboard).values()] == [
        "Service",
        "NetworkPolicy",
        "Deployment",
    ]


def test_it_only_shows_and_its_token_is_in_a_file_alone() -> None:
    words = pod()["containers"][0]["args"]
    assert words[:7] == ["dashboard", "/runs", "--host", "0.0.0.0", "--port", str(PORT), "--readonly"]
    assert words[words.index("--token-file") + 1] == "/token/token"
    assert words[words.index("--name") + 1] == "paceline-dashboard.train.svc"
    deployment: Any = render(ASKED)["deployment.yaml"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "a volume cannot be at two machines"
    runs, token, _tmp = pod()["volumes"]
    assert runs["persistentVolumeClaim"] == {"claimName": "output", "readOnly": True}
    assert token["secret"]["secretName"] == "page"
    assert token["secret"]["defaultMode"] & 0o037 == 0, "a file that others can read is refused"
    assert "/dev/null" in pod()["containers"][0]["command"][2], "its address, with the token, is in no log"
    assert "from-literal" not in " ".join(secret_commands(ASKED))
    assert f"{PORT}:{PORT}" in access_commands(ASKED)[0]


def test_only_the_clients_that_the_user_named_reach_it() -> None:
    closed: Any = render(ASKED)["networkpolicy.yaml"]["spec"]
    assert (closed["ingress"], closed["egress"]) == ([], [])
    opened: Any = render(MORE)["networkpolicy.yaml"]["spec"]
    label = {"kubernetes.io/metadata.name": "ingress-nginx"}
    assert opened["ingress"][0]["from"] == [{"namespaceSelector": {"matchLabels": label}}]
    assert opened["egress"] == []


@pytest.mark.parametrize("mutation", [misspell, mistype])
def test_a_typo_anywhere_is_found(mutation: Mutation) -> None:
    rng, missed = random.Random(13), list[str]()
    for name, whole in render(MORE).items():
        for path in [path for path in paths_in(whole) if path and "Probe" not in str(path)]:
            copied = copy.deepcopy(whole)
            is_named_port = mutation is mistype and path[-1] == "port"
            if (
                not is_named_port
                and mutation(copied, path, rng)
                and not find_problems(copied, Profile.STRICT)
            ):
                missed.append(f"{name} {path}: is {at(copied, path[:-1])}")
    assert missed == []


@pytest.mark.parametrize(
    "change",
    [
        {"selector": {}},
        {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
        {"strategy": {"rollingUpdate": {"maxSurge": "many"}}},
        {"strategy": {"type": "Rolling"}},
        {"replica": 1},
    ],
)
def test_a_broken_deployment_is_found(change: Object) -> None:
    whole: Any = copy.deepcopy(render(ASKED)["deployment.yaml"])
    whole["spec"] |= change
    assert find_problems(whole, Profile.STRICT)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"path": "../secrets"}, "--path"),
        ({"path": "/runs"}, "--path"),
        ({"claim": "A_B"}, "--claim"),
        ({"hosts": ("http://x",)}, "--host-name"),
        ({"from_namespaces": ("a.b",)}, "--from-namespace"),
        ({"memory": "much"}, "--memory"),
        ({"token_secret": "a b"}, "--token-secret"),
        ({"pull_secret": "A"}, "--pull-secret"),
        ({"image": "Not An Image"}, "--image"),
    ],
)
def test_what_cannot_work_is_refused(change: Object, where: str) -> None:
    given = {"namespace": "train", "image": "example.com/x:1", "claim": "output", "token_secret": "page"}
    with pytest.raises(ConfigError) as caught:
        dashboard_files(Dashboard(**{**given, **change}))
    assert [problem.where for problem in caught.value.problems] == [where]


def test_it_is_applied_once_and_not_before_all_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "cluster",
        "deploy",
        "apply",
        "dashboard",
        "-n",
        "train",
        "--image",
        "example.com/x:1",
        "--claim",
        "output",
    ]
    words += ["--kubeconfig", "config", "--json"]

    def put(kind: str, name: str, **more: Any) -> None:
        about = {"name": name} if kind == "Namespace" else {"name": name, "namespace": "train"}
        server.put({"apiVersion": "v1", "kind": kind, "metadata": about, **more})

    def applied() -> tuple[ExitCode, str]:
        return ExitCode(run(words, Session(folder=tmp_path))), capsys.readouterr().out

    with ApiServer().running() as server:
        server.kubeconfig(tmp_path / "config")
        token: Object = {"data": {"token": "eA=="}}
        missing: list[tuple[str, str, str, Object]] = [
            ("no namespace train", "Namespace", "train", {}),
            ("no Secret paceline-dashboard-token", "Secret", "paceline-dashboard-token", {}),
            ("lacks token", "Secret", "paceline-dashboard-token", token),
            ("no claim output", "PersistentVolumeClaim", "output", {}),
        ]
        for description, kind, name, more in missing:
            code, text = applied()
            assert code == ExitCode.NOT_READY
            assert description in text
            put(kind, name, **more)
        assert server.writes == []
        for state in ("created", "there"):
            code, text = applied()
            assert [manifest["state"] for manifest in json.loads(text)["data"]["objects"]] == [state] * 3
        assert len(server.writes) == 3
        # A server drops empty lists, and a user who needs no page for a while scales it to zero.
        (policy,) = server.of(NETWORK_POLICY)
        del policy["spec"]["ingress"], policy["spec"]["egress"]
        (page,) = server.of(DEPLOYMENT)
        page["spec"]["replicas"] = 0
        server.put(policy)
        server.put(page)
        code, text = applied()
        assert [manifest["state"] for manifest in json.loads(text)["data"]["objects"]] == [
            "there",
            "there",
            "changed",
        ]
        assert [manifest["metadata"]["name"] for manifest in server.of(DEPLOYMENT)] == ["paceline-dashboard"]
