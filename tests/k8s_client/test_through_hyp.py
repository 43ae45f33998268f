"""A job is submitted to HyperPod by `hyp`, and is followed like any other afterwards."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.kubernetes.api_server import ApiServer
from tests.fixtures.kubernetes.hyp_command import install
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ConfigError, ExitCode
from paceline.k8s.kinds import CONFIG_MAP, HYPERPOD_JOB, Kind
from paceline.k8s.render.hyp import folder, read_version, to_hyp_job
from paceline.k8s.submit.job_state import read_annotations
from paceline.training.session import Session

Object = dict[str, Any]
ASK = [
    *("--nodes", "2", "--gpus-per-node", "8", "--worker-cpus", "8"),
    *("--instance-type", "ml.p5.48xlarge", "--namespace", "team"),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer().running() as running:
        monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path / "kubeconfig")))
        yield running


def rendered(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Path:
    words = ["job", "render", "--quiet", "--target", "hyperpod", "--name", "demo", "--task", "xor"]
    words += ["--mode", "ddp", "--image", "example.com/x:1", *more]
    assert run(words, Session(folder=folder)) == ExitCode.OK
    path = folder / "demo.yaml"
    path.write_text(capsys.readouterr().out)
    return path


def has_ended(server: ApiServer) -> None:
    """Whatever is made has ended at once, so that it is followed for no time."""

    def end(_verb: str, kind: Kind, manifest: Object) -> None:
        if kind == HYPERPOD_JOB and "spec" in manifest:
            manifest["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}

    server.rules.append(end)


def send(folder: Path, *more: str) -> ExitCode:
    words = ["job", "submit", "demo.yaml", "-n", "team", "--through", "hyp", "--skip-fit", *more]
    return ExitCode(run(words, Session(folder=folder)))


def test_a_job_is_sent_by_hyp_and_followed_by_us(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "config.yaml").write_text("task: xor\n")
    rendered(
        tmp_path,
        capsys,
        *(*ASK, "--config", str(tmp_path / "config.yaml"), "--config-map", "--worker-memory", "65536Mi"),
        *("--checkpoint-volume", "output", "--hf-secret", "hf-token", "--env", "ODD={{ 7 * 7 }}{% raw %}"),
    )
    has_ended(server)
    for kind, name in (("PersistentVolumeClaim", "output"), ("Secret", "hf-token")):
        server.put({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}})
    assert send(tmp_path) == ExitCode.OK
    captured = capsys.readouterr()
    assert "hyp 3.12.0" in captured.err
    assert "fsGroup" in captured.err
    (job,) = server.of(HYPERPOD_JOB, "team")
    pod = job["spec"]["replicaSpecs"][0]["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"]["memory"] == "64.0Gi"
    assert {"name": "ODD", "value": "{{ 7 * 7 }}{% raw %}"} in pod["containers"][0]["env"]
    assert read_annotations(job) is not None, "any machine can follow it"
    assert len(server.of(CONFIG_MAP, "team")) == 1
    version, create = [json.loads(line) for line in calls.read_text().splitlines()]
    assert (version["argv"], create["argv"]) == (["--version"], ["create"])
    assert set(create["files"]) == {"config.yaml", "k8s.jinja"}
    for verb in ("status", "logs"):
        assert run(["job", verb, "demo", "-n", "team"], Session(folder=tmp_path)) == ExitCode.OK


def test_a_context_is_handed_over_and_a_refusal_leaves_nothing(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "config.yaml").write_text("task: xor\n")
    rendered(tmp_path, capsys, *ASK, "--config", str(tmp_path / "config.yaml"), "--config-map")
    text = (tmp_path / "kubeconfig").read_text()
    (tmp_path / "kubeconfig").write_text(text.replace("current-context: test", "current-context: elsewhere"))
    install(tmp_path / "bin", fails="Invalid instance_type 'ml.p5.48xlarge'.")
    assert send(tmp_path, "--context", "test") == ExitCode.NOT_READY
    refused = capsys.readouterr().err
    assert "error[" in refused
    assert "hyp create" in refused
    assert server.of(HYPERPOD_JOB, "team") == server.of(CONFIG_MAP, "team") == []
    install(tmp_path / "bin")
    has_ended(server)
    assert send(tmp_path, "--context", "test") == ExitCode.OK
    assert len(server.of(HYPERPOD_JOB, "team")) == 1


def test_without_hyp_or_with_an_old_one_the_cluster_is_not_called(
    server: ApiServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    rendered(tmp_path, capsys, *ASK)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert send(tmp_path) == ExitCode.NOT_READY
    wording(capsys.readouterr().err)
    install(tmp_path / "bin", "3.1.0")
    assert send(tmp_path) == ExitCode.NOT_READY
    wording(capsys.readouterr().err)
    assert server.asked == []


def job(**pod: Any) -> Object:
    container = {"image": "x:1", "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}}}
    template = {"spec": {"containers": [container], **pod}}
    spec = {"replicaSpecs": [{"name": "pods", "replicas": 2, "template": template}]}
    return {"kind": "HyperPodPyTorchJob", "metadata": {"name": "demo"}, "spec": spec}


def test_amounts_are_written_as_hyp_reads_them() -> None:
    resources = to_hyp_job(job()).job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0][
        "resources"
    ]
    assert resources["requests"] == {"cpu": "0.5", "memory": "0.5Gi"}


def test_what_keeps_pods_in_one_zone_is_never_lost_in_silence(wording: Wording) -> None:
    near: Object = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    with wording.raises(ConfigError):
        to_hyp_job(job(affinity=near))
    hyp_job = to_hyp_job(job(affinity=dict(near), nodeSelector={"topology.kubernetes.io/zone": "eu-west-1a"}))
    wording(hyp_job.notes[0])
    assert near, "what was given is not changed"


def test_other_kinds_and_nameless_machines_are_refused(wording: Wording) -> None:
    with wording.raises(ConfigError):
        to_hyp_job({"kind": "PyTorchJob"})
    with_gpus = job()
    container = with_gpus["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]
    container["resources"]["requests"]["nvidia.com/gpu"] = "8"
    with wording.raises(ConfigError):
        to_hyp_job(with_gpus)


def test_a_text_is_never_read_as_a_template() -> None:
    odd = job(hostname='{{ x }} {# {% " \\{')
    text = folder(odd)["k8s.jinja"]
    assert not [mark for mark in ("{{", "{%", "{#") if mark in text]
    assert json.loads(text) == odd


def test_versions_are_read() -> None:
    assert read_version("hyp version: 3.12.0\nother version: 9.9") == (3, 12, 0)
    assert read_version("hyp version: Not installed") is None
