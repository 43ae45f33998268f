"""`paceline data upload` and `paceline job results` transfer files, and refuse what they must."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.volume_pod import NAMESPACE, VolumePod
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import POD
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
JOB = Path(__file__).parent.parent.parent / "examples" / "kubeflow" / "pytorchjob-sp500.yaml"
UPLOAD = ["data", "upload", "--kubeconfig", "kubeconfig", "-n", NAMESPACE]
RESULTS = ["job", "results", "--kubeconfig", "kubeconfig", "-n", NAMESPACE]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[VolumePod]:
    with ApiServer().running() as server:
        made = VolumePod(server, tmp_path / "pod")
        server.kubeconfig(tmp_path / "kubeconfig")
        yield made


def test_a_file_goes_there_and_comes_back(pod: VolumePod, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "rows.npz").write_bytes(b"rows" * 1000)
    session = Session(folder=tmp_path)
    assert run([*UPLOAD, "rows.npz", "--pvc", "data", "--to", "demo/in"], session) == ExitCode.OK
    shown = capsys.readouterr()
    assert "1 file, 4 kB, 1 chunk, " in shown.err
    assert "1 file, 4 kB, " in shown.out
    assert (pod.volume / "demo" / "in" / "rows.npz").read_bytes() == b"rows" * 1000
    words = [*RESULTS, "demo", "--pvc", "data", "--out", "got", "--json"]
    assert run(words, Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]
    assert (answer["files"], answer["fetched_files"], answer["path"]) == (1, 1, "demo")
    assert (tmp_path / "got" / "in" / "rows.npz").read_bytes() == b"rows" * 1000
    assert pod.server.of(POD) == []


def test_a_job_prints_where_its_results_are(pod: VolumePod, tmp_path: Path, capsys: Captured) -> None:
    for manifest in yaml.safe_load_all(JOB.read_text()):
        pod.server.put({**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE}})
    (pod.volume / "sp500").mkdir()
    (pod.volume / "sp500" / "result.json").write_text("{}")
    assert run([*RESULTS, "sp500", "--out", "got", "--json"], Session(folder=tmp_path)) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["claim"] == "sp500-output"
    assert (tmp_path / "got" / "result.json").read_text() == "{}"


def test_a_job_that_is_gone_requires_its_claim(
    pod: VolumePod, tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    assert run([*RESULTS, "gone", "--out", "got"], Session(folder=tmp_path)) == ExitCode.NOT_READY
    wording(capsys.readouterr().err)
    assert pod.server.writes == []


def test_more_than_two_gibibytes_are_refused_with_another_way(
    pod: VolumePod, tmp_path: Path, capsys: Captured
) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate((2 << 30) + 1)  # holes: nothing is written
    assert run([*UPLOAD, "huge.bin", "--pvc", "data"], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    stderr = capsys.readouterr().err
    assert "2,147,483,649 bytes" in stderr
    assert "s3://BUCKET/PREFIX" in stderr
    assert pod.server.asked == [], "the cluster is not even asked"


@pytest.mark.parametrize(
    "words",
    [
        ["nothing", "--pvc", "data"],
        ["hollow", "--pvc", "data"],
        ["odd", "--pvc", "data"],
        ["linked", "--pvc", "data"],
        ["fine", "--pvc", "data", "--to", "../elsewhere"],
    ],
)
def test_an_invalid_upload_is_refused_before_the_cluster_is_called(
    pod: VolumePod, tmp_path: Path, capsys: Captured, words: list[str], wording: Wording
) -> None:
    for name in ("hollow", "odd", "linked", "fine"):
        (tmp_path / name).mkdir()
    (tmp_path / "odd" / "a\\b").write_text("x")
    (tmp_path / "linked" / "to").symlink_to(tmp_path / "fine")
    (tmp_path / "fine" / "x").write_text("x")
    assert run([*UPLOAD, *words], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
    assert pod.server.asked == []
