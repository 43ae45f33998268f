"""Do `paceline data upload` and `paceline job results` carry files, and refuse what they should?"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fixtures.api_server import ApiServer
from tests.fixtures.volume_pod import NAMESPACE, VolumePod

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
    said = Session(folder=tmp_path)
    assert run([*UPLOAD, "rows.npz", "--pvc", "data", "--to", "demo/in"], said) == ExitCode.OK
    shown = capsys.readouterr()
    assert "plan: 1 file, 4 kB, 1 chunk, to claim data, demo/in" in shown.err
    assert "there      1 file, 4 kB, checksums equal" in shown.out
    assert (pod.volume / "demo" / "in" / "rows.npz").read_bytes() == b"rows" * 1000
    words = [*RESULTS, "demo", "--pvc", "data", "--out", "got", "--json"]
    assert run(words, Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)["data"]
    assert (answer["files"], answer["fetched_files"], answer["path"]) == (1, 1, "demo")
    assert (tmp_path / "got" / "in" / "rows.npz").read_bytes() == b"rows" * 1000
    assert pod.server.of(POD) == []


def test_a_job_says_where_its_results_are(pod: VolumePod, tmp_path: Path, capsys: Captured) -> None:
    for one in yaml.safe_load_all(JOB.read_text()):
        pod.server.put({**one, "metadata": {**one["metadata"], "namespace": NAMESPACE}})
    (pod.volume / "sp500").mkdir()
    (pod.volume / "sp500" / "result.json").write_text("{}")
    assert run([*RESULTS, "sp500", "--out", "got", "--json"], Session(folder=tmp_path)) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["claim"] == "sp500-output"
    assert (tmp_path / "got" / "result.json").read_text() == "{}"


def test_a_job_that_is_gone_asks_for_its_claim(pod: VolumePod, tmp_path: Path, capsys: Captured) -> None:
    assert run([*RESULTS, "gone", "--out", "got"], Session(folder=tmp_path)) == ExitCode.NOT_READY
    assert "there is no job gone in namespace train" in capsys.readouterr().err
    assert pod.server.writes == []


def test_more_than_two_gibibytes_are_refused_with_another_way(
    pod: VolumePod, tmp_path: Path, capsys: Captured
) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate((2 << 30) + 1)  # holes: nothing is written
    assert run([*UPLOAD, "huge.bin", "--pvc", "data"], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    told = capsys.readouterr().err
    assert "2,147,483,649 bytes are more than" in told
    assert "s3://BUCKET/PREFIX" in told
    assert pod.server.asked == [], "the cluster is not even asked"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing", "--pvc", "data"], "there is no file or folder"),
        (["hollow", "--pvc", "data"], "holds no files"),
        (["odd", "--pvc", "data"], "line break or a backslash"),
        (["linked", "--pvc", "data"], "is a link to a folder"),
        (["fine", "--pvc", "data", "--to", "../elsewhere"], "it leads out of the volume"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_a_cluster_is_asked(
    pod: VolumePod, tmp_path: Path, capsys: Captured, words: list[str], told: str
) -> None:
    for name in ("hollow", "odd", "linked", "fine"):
        (tmp_path / name).mkdir()
    (tmp_path / "odd" / "a\\b").write_text("x")
    (tmp_path / "linked" / "to").symlink_to(tmp_path / "fine")
    (tmp_path / "fine" / "x").write_text("x")
    assert run([*UPLOAD, *words], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    assert told in capsys.readouterr().err
    assert pod.server.asked == []
