"""The steps of "Train on Kubernetes" work in the order of the guide."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.pages import ROOT, Save, orders
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.operators import reference
from tests.fixtures.kubernetes.volume_pod import VolumePod

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.k8s.kinds import CLAIM, CONFIG_MAP, NAMESPACE, PYTORCH_JOB, Kind
from paceline.training.session import Session

Object = dict[str, Any]
PAGE = (ROOT / "docs" / "guides" / "train-on-kubernetes.md").read_text(encoding="utf-8")
GUIDE = PAGE[PAGE.index("## 1. ") : PAGE.index("## Required permissions")]
SPACE = "ml-training"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)


def commands() -> list[str]:
    """Each on a line of its own. What is refused on purpose is run by the test of all guides."""
    text = "".join(_BLOCK.findall(GUIDE)).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("paceline ") and "pictures" not in line]


def typed(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(line, comments=True)[1:]
    target = words[words.index(">") + 1] if ">" in words else None
    code = run(words[: words.index(">")] if target else words, Session(folder=folder))
    captured = capsys.readouterr()
    assert code == ExitCode.OK, f"{line}\n{captured.out}\n{captured.err}"
    if target:
        (folder / target).write_text(captured.out)
    return captured.out + captured.err


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Four nodes with a GPU each, and an operator whose jobs end as soon as they are made."""
    with ApiServer().running() as running:
        has = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1", "pods": "100"}
        for number in range(4):
            about = {"name": f"node-{number}"}
            running.put(
                {"apiVersion": "v1", "kind": "Node", "metadata": about, "status": {"allocatable": has}}
            )
        running.rules.append(_ended)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path / "kubeconfig")))
        yield running


def _ended(_verb: str, kind: Kind, manifest: Object) -> None:
    if kind == PYTORCH_JOB and "spec" in manifest:
        manifest["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}


def pods(server: ApiServer) -> None:
    """What the operator made of the job."""
    (job,) = server.of(PYTORCH_JOB, SPACE)
    for rank, name in enumerate(("master-0", "worker-0", "worker-1", "worker-2")):
        role, number = name.split("-")
        labels = {"training.kubeflow.org/job-name": "sp500", "training.kubeflow.org/replica-type": role}
        labels["training.kubeflow.org/replica-index"] = number
        about: Object = {"name": f"sp500-{name}", "namespace": SPACE, "labels": labels}
        about["ownerReferences"] = [reference(job)]
        values = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        server.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": about,
                "spec": {
                    "nodeName": f"node-{rank}",
                    "containers": [{"name": "pytorch", "image": "example.com/paceline:1"}],
                },
                "status": {
                    "phase": "Succeeded",
                    "containerStatuses": [{"name": "pytorch", "state": values, "restartCount": 0}],
                },
            }
        )
        server.say(SPACE, f"sp500-{name}", "pytorch", "2026-11-15T12:00:00Z", f"loss of rank {rank}: 0.69")
        server.end_log(SPACE, f"sp500-{name}", "pytorch")


def test_the_guide_leads_from_a_file_to_results(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = VolumePod(server, tmp_path / "pod")
    for order in orders(GUIDE):
        if isinstance(order, Save):
            (tmp_path / order.name).write_text(order.text)
    (tmp_path / "sp500_classification.npz").write_bytes(b"closes" * 1000)
    message = ""
    *work, stop = commands()
    for line in work:
        if line.startswith("paceline job status"):
            pods(server)
        if line.startswith("paceline job results"):
            (files.volume / "sp500").mkdir()
            (files.volume / "sp500" / "result.json").write_text("{}")
        message += typed(line, tmp_path, capsys)
    assert [manifest["metadata"]["name"] for manifest in server.of(NAMESPACE)] == [SPACE]
    claims = {
        manifest["metadata"]["name"]: manifest["spec"]["accessModes"] for manifest in server.of(CLAIM, SPACE)
    }
    assert claims == {"data": ["ReadWriteMany"], "output": ["ReadWriteMany"]}
    assert (files.volume / "sp500_classification.npz").read_bytes() == b"closes" * 1000
    assert "rank 0: 0.69" in message
    assert list(tmp_path.glob("results/**/result.json"))
    _is_what_was_asked_for(server, (tmp_path / "config.yaml").read_text())
    typed(stop, tmp_path, capsys)
    assert not server.of(PYTORCH_JOB, SPACE)
    assert not server.of(CONFIG_MAP, SPACE)
    assert len(server.of(CLAIM, SPACE)) == 2, "results are kept"


def _is_what_was_asked_for(server: ApiServer, config: str) -> None:
    (settings,) = server.of(CONFIG_MAP, SPACE)
    assert config in settings["data"].values(), "the file of settings, as it is"
    (job,) = server.of(PYTORCH_JOB, SPACE)
    roles = job["spec"]["pytorchReplicaSpecs"]
    assert {name: role["replicas"] for name, role in roles.items()} == {"Master": 1, "Worker": 3}
    for role in roles.values():
        assert role["restartPolicy"] == "OnFailure"
        (container,) = role["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
        volumes = {item["mountPath"]: item for item in container["volumeMounts"]}
        assert volumes["/data"]["readOnly"]
        assert "readOnly" not in volumes["/output"]
