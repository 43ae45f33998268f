"""`paceline cluster` lists clusters and checks one, without showing secrets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.kubernetes.api_server import TOKEN, ApiServer
from tests.fixtures.wording import Wording
from tests.k8s.clusters import CLUSTERS
from tests.k8s_client.served import serve

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "clusters"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        yield running


def cluster(folder: Path, *words: str) -> ExitCode:
    return ExitCode(run(["cluster", *words], Session(folder=folder)))


def test_examples_are_the_clusters_of_the_tests() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == set(CLUSTERS)
    for name, make in CLUSTERS.items():
        assert json.loads((EXAMPLES / f"{name}.json").read_text()) == make(), name


def test_a_saved_cluster_is_checked_without_asking_one(capsys: Captured, wording: Wording) -> None:
    words = ["--from", "eks-device-plugin.json", "--need", "gpus=16,efa", "--target", "pytorchjob"]
    assert cluster(EXAMPLES, "check", *words) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith("ok ")
    wording(out)


def test_a_missing_cluster_ends_with_an_exit_code_and_a_hint(capsys: Captured) -> None:
    words = ["--from", "minikube.json", "--target", "trainjob", "--json"]
    assert cluster(EXAMPLES, "check", *words) == ExitCode.NOT_READY
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.cluster.check/1"
    assert answer["data"]["fine"] is False
    (problem,) = [finding for finding in answer["data"]["findings"] if finding["level"] == "problem"]
    assert "TrainJob" in problem["what"]
    assert problem["next"].startswith("helm upgrade --install kubeflow-trainer")


def test_a_plan_for_a_saved_cluster_separates_what_it_would_do_from_what_waits(capsys: Captured) -> None:
    words = ["--from", "minikube.json", "--target", "trainjob", "--claim", "data=1Gi", "--json"]
    assert cluster(EXAMPLES, "fix", *words) == ExitCode.OK
    fixes = json.loads(capsys.readouterr().out)["data"]["fixes"]
    assert {fix["name"]: fix["state"] for fix in fixes} == {"claim": "would", "trainer": "waits"}


def test_a_cluster_is_probed_saved_and_checked_again(
    server: ApiServer, tmp_path: Path, capsys: Captured
) -> None:
    serve(server, CLUSTERS["bottlerocket"]())
    server.kubeconfig(tmp_path / "config")
    words = ["check", "--kubeconfig", "config", "-n", "train", "--target", "rayjob", "--save", "seen.json"]
    assert cluster(tmp_path, *words) == ExitCode.OK
    live = capsys.readouterr()
    assert cluster(tmp_path, "check", "--from", "seen.json", "--target", "rayjob") == ExitCode.OK
    assert capsys.readouterr().out == live.out
    assert TOKEN not in live.out + live.err + (tmp_path / "seen.json").read_text()


def test_contexts_are_listed_without_their_secrets(
    server: ApiServer, tmp_path: Path, capsys: Captured
) -> None:
    server.kubeconfig(tmp_path / "config")
    assert cluster(tmp_path, "list", "--kubeconfig", "config") == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.out == f"* test  {server.url}  namespace default\n"
    assert TOKEN not in captured.out + captured.err
    assert server.asked == []


def test_several_files_are_one_list(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        config = {
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": name, "namespace": f"ns-{name}"}}],
            "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example.com"}}],
        }
        (tmp_path / name).write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert cluster(tmp_path, "list", "--json") == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)["data"]["contexts"]
    assert [(row["name"], row["namespace"], row["current"]) for row in rows] == [
        ("one", "ns-one", True),
        ("two", "ns-two", False),
    ]


def test_an_expired_login_is_one_error(server: ApiServer, tmp_path: Path, capsys: Captured) -> None:
    server.kubeconfig(tmp_path / "config")
    server.is_closed_to = True
    assert cluster(tmp_path, "check", "--kubeconfig", "config") == ExitCode.UNREACHABLE
    stderr = capsys.readouterr().err
    assert stderr.count("error[E") == 1
    assert "Unauthorized" in stderr
    assert TOKEN not in stderr


def test_a_cluster_that_is_not_there_is_one_error(tmp_path: Path, capsys: Captured) -> None:
    with ApiServer().running() as gone:
        gone.kubeconfig(tmp_path / "config")
    assert cluster(tmp_path, "check", "--kubeconfig", "config") == ExitCode.UNREACHABLE
    assert capsys.readouterr().err.count("error[E") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--from", "none.json"], ExitCode.TRAINING_FAILED),
        (["--from", "text.json"], ExitCode.BAD_CONFIG),
        (["--from", "other.json"], ExitCode.BAD_CONFIG),
        (["--from", "other.json", "--context", "a"], ExitCode.BAD_CONFIG),
        (["--need", "gpu=1"], ExitCode.BAD_CONFIG),
        (["--kubeconfig", "none"], ExitCode.NOT_READY),
        (["--kubeconfig", "text.json"], ExitCode.NOT_READY),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], code: ExitCode, tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    (tmp_path / "text.json").write_text("just a text")
    (tmp_path / "other.json").write_text("{}")
    assert cluster(tmp_path, "check", *words) == code
    stderr = capsys.readouterr().err
    assert stderr.count("error[E") == 1
    wording(stderr)
