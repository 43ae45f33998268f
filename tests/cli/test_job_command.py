"""`paceline job` prints manifests that can be piped to kubectl, and every problem with its place."""

import json
from pathlib import Path

import pytest
import yaml
from tests.fixtures.wording import Wording

from paceline.cli.main import run
from paceline.core.errors import ExitCode
from paceline.training.session import Session

Captured = pytest.CaptureFixture[str]
RENDER = ["job", "render", "--task", "xor", "--mode", "localsgd", "--num-workers", "2"]
RENDER += ["--image", "example.com/x:1", "--name", "demo"]


def test_yaml_goes_to_stdout_and_is_valid(tmp_path: Path, capsys: Captured) -> None:
    assert run([*RENDER, "--target", "rayjob", "--node-port"], Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    job, service = yaml.safe_load_all(out)
    assert (job["kind"], service["kind"]) == ("RayJob", "Service")
    assert job["metadata"]["name"] == "demo"
    assert "--running-s" in err, "the deadline by default is announced"
    (tmp_path / "demo.yaml").write_text(out)
    assert run(["job", "validate", "demo.yaml"], Session(folder=tmp_path)) == ExitCode.OK
    assert capsys.readouterr().out == "ok  RayJob/demo\nok  Service/demo-node-port\n"


def test_a_standing_cluster_prints_what_to_run_on_it(tmp_path: Path, capsys: Captured) -> None:
    assert run([*RENDER, "--target", "raycluster"], Session(folder=tmp_path)) == ExitCode.OK
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["kind"] == "RayCluster"
    assert err.endswith("paceline train --launcher ray --address auto --mode localsgd --name demo\n")


def test_compat_lists_what_it_gives_up_and_quiet_prints_nothing(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    run([*RENDER, "--target", "rayjob", "--profile", "compat"], Session(folder=tmp_path))
    wording(capsys.readouterr().err)
    run([*RENDER, "--target", "rayjob", "--profile", "compat", "--quiet"], Session(folder=tmp_path))
    assert capsys.readouterr().err == ""


def test_settings_come_from_files_and_variables_too(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "train.yaml").write_text("mode: ssp\nstaleness: 5\n")
    flags = ["job", "render", "--target", "rayjob", "--image", "example.com/x:1", "--name", "demo"]
    session = Session(folder=tmp_path, variables={"steps": "77"})
    assert run([*flags, "-c", str(tmp_path / "train.yaml"), "--set", "seed=4"], session) == ExitCode.OK
    entrypoint = yaml.safe_load(capsys.readouterr().out)["spec"]["entrypoint"]
    start = "paceline train --launcher ray --address auto --mode ssp"
    assert entrypoint == f"{start} --name demo --steps 77 --seed 4 --staleness 5"


def test_the_answer_as_json_holds_objects_and_text(tmp_path: Path, capsys: Captured) -> None:
    assert run([*RENDER, "--target", "rayjob", "--json"], Session(folder=tmp_path)) == ExitCode.OK
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "paceline.job.render/1"
    assert answer["data"]["manifests"] == list(yaml.safe_load_all(answer["data"]["yaml"]))
    assert answer["data"]["command"][:2] == ["paceline", "train"]


def test_every_problem_of_a_request_is_reported_at_once(tmp_path: Path, capsys: Captured) -> None:
    flags = ["--target", "rayjob", "--image", "x", "--name", "No", "--autoscale", "2"]
    assert run(["job", "render", *flags], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error[E109]: ") == 3
    assert err.count("fix: ") == 3


def test_a_bad_file_is_exit_code_3_with_file_line_and_field(tmp_path: Path, capsys: Captured) -> None:
    run([*RENDER, "--target", "rayjob"], Session(folder=tmp_path))
    text = capsys.readouterr().out.replace("memory: 4Gi", "memory: 4GB", 1)
    (tmp_path / "demo.yaml").write_text(text)
    assert run(["job", "validate", "demo.yaml", "--json"], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    (problem,) = json.loads(capsys.readouterr().out)["error"]["problems"]
    line = next(number for number, item in enumerate(text.splitlines(), 1) if "4GB" in item)
    assert problem["where"] == f"{tmp_path / 'demo.yaml'}:{line}"
    assert problem["what"].startswith(
        "spec.rayClusterSpec.headGroupSpec.template.spec.containers[0].resources."
    )


def test_a_plain_manifest_is_valid_and_lacks_only_what_the_strict_profile_wants(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    container = {"name": "main", "image": "example.com/x:latest"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    plain = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "plain"}}
    (tmp_path / "plain.yaml").write_text(json.dumps({**plain, "spec": {"template": template}}))
    words = ["job", "validate", "plain.yaml"]
    assert run(words, Session(folder=tmp_path)) == ExitCode.OK
    wording(capsys.readouterr().err)
    assert run([*words, "--json"], Session(folder=tmp_path)) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["data"]["below_strict"] > 0
    assert run([*words, "--profile", "strict", "--json"], Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    problems = json.loads(capsys.readouterr().out)["error"]["problems"]
    assert any("example.com/x:latest" in problem["what"] for problem in problems)


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path, capsys: Captured) -> None:
    assert run(["job", "validate", "nothing.yaml"], Session(folder=tmp_path)) == ExitCode.TRAINING_FAILED
    assert "nothing.yaml" in capsys.readouterr().err


def test_a_job_of_torchrun_is_printed_checked_and_commented(
    tmp_path: Path, capsys: Captured, wording: Wording
) -> None:
    words = ["job", "render", "--task", "xor", "--mode", "ddp", "--nodes", "2"]
    words += ["--image", "example.com/x:1", "--name", "demo"]
    for target, kinds in {
        "pytorchjob": ["PyTorchJob"],
        "trainjob": ["TrainingRuntime", "TrainJob"],
        "job": ["Service", "Job"],
        "hyperpod": ["HyperPodPyTorchJob"],
    }.items():
        assert run([*words, "--target", target], Session(folder=tmp_path)) == ExitCode.OK
        out, err = capsys.readouterr()
        assert [manifest["kind"] for manifest in yaml.safe_load_all(out)] == kinds
        wording(err)
        (tmp_path / "demo.yaml").write_text(out)
        assert run(["job", "validate", "demo.yaml"], Session(folder=tmp_path)) == ExitCode.OK
        assert capsys.readouterr().out == "".join(f"ok  {kind}/demo\n" for kind in kinds)


def test_the_namespace_has_its_short_flag(tmp_path: Path, capsys: Captured) -> None:
    for flag in ("-n", "--namespace"):
        assert run([*RENDER, "--target", "rayjob", flag, "team-a"], Session(folder=tmp_path)) == ExitCode.OK
        (job,) = [
            manifest
            for manifest in yaml.safe_load_all(capsys.readouterr().out)
            if manifest["kind"] == "RayJob"
        ]
        assert job["metadata"]["namespace"] == "team-a"


def test_a_file_of_settings_becomes_a_configmap(tmp_path: Path, capsys: Captured, wording: Wording) -> None:
    (tmp_path / "train.toml").write_text('mode = "ddp"\nsteps = 7\n')
    words = ["job", "render", "--target", "job", "--nodes", "2", "--image", "x:1", "--name", "demo", "-q"]
    words += ["--config-map", "--seed", "3"]
    session = Session(folder=tmp_path)
    assert run([*words, "-c", str(tmp_path / "train.toml")], session) == ExitCode.OK
    config, _, job = yaml.safe_load_all(capsys.readouterr().out)
    assert config["data"] == {"config.toml": 'mode = "ddp"\nsteps = 7\n'}
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    message = "--config /config/config.toml --name demo --seed 3 --save-dir /results"
    assert " ".join(args).endswith(message)
    assert run(words, Session(folder=tmp_path)) == ExitCode.BAD_CONFIG
    wording(capsys.readouterr().err)
