"""The buildspec pushes only what was built and tested; run phase by phase as CodeBuild does.

`paceline` is a stand-in that records its calls and fails on request; the stand-in for `python` installs
nothing. The shell, the guards and the order are those of the file.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from infra.run_buildspec import Build, run
from tests.fixtures.processes.command import ROOT

SPEC = yaml.safe_load((ROOT / "infra" / "buildspec.yml").read_text())
REPOSITORY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team-vision"
SECRET = "planted-secret-3f9a"
STAND_IN = """#!/bin/sh
verb=$2
printf '%s\\n' "$(basename "$0") $*" >>"$CALLS"
while [ $# -gt 0 ]; do
  if [ "$1" = --report ]; then mkdir -p "$2"; echo "$verb" >"$2/$verb.json"; touch "$2/junit.xml"; fi
  shift
done
[ "$verb" != "${FAILS:-}" ]
"""


@dataclass(frozen=True, slots=True)
class World:
    folder: Path

    def build(self, **variables: str) -> Build:
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("paceline", "python", "aws", "docker"):
            (tools / name).write_text(STAND_IN)
            (tools / name).chmod(0o755)
        project = {
            "IMAGE_REPOSITORY": REPOSITORY,
            "CODEBUILD_BUILD_NUMBER": "17",
            "PATH": f"{tools}:/usr/bin:/bin",
            "CALLS": str(self.folder / "calls"),
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        return run(SPEC, source, {**project, **variables})

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def called(self, verb: str) -> list[str]:
        return [call for call in self.calls if call.startswith(f"paceline image {verb} ")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_image_is_built_tested_and_pushed_in_this_order(world: World) -> None:
    build = world.build()
    assert build.succeeds
    assert build.ran == ["install", "pre_build", "build", "post_build"]
    assert world.calls == [
        "python -m pip install --quiet --disable-pip-version-check --cache-dir pip-cache .[image,aws]",
        "paceline image build . --tag paceline-build:17 --no-smoke-test --report reports/build",
        "paceline image test paceline-build:17 --level standard --report reports/test",
        f"paceline image push paceline-build:17 --to {REPOSITORY} --tag build-17 --tags git-sha --tags latest"
        " --no-create --report reports/push",
    ]


@pytest.mark.parametrize("verb", ["build", "test"])
def test_nothing_is_pushed_after_a_failure(
    verb: str, world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    build = world.build(FAILS=verb)
    assert not build.succeeds
    assert build.ran[-1] == "post_build"  # CodeBuild runs it nevertheless: hence the guard
    assert world.called("push") == []
    assert len(world.called("test")) == (1 if verb == "test" else 0)
    assert "not pushed: " in capfd.readouterr().err
    assert (world.folder / "source" / "reports" / verb / f"{verb}.json").exists()  # what is uploaded says why


def test_without_the_guard_a_failed_image_would_be_pushed(world: World) -> None:
    """The runner is as careless as CodeBuild: it is the file that is careful."""
    careless = {**SPEC["phases"], "post_build": {"commands": ['paceline image push "$IMAGE" --to x']}}
    tools = world.folder / "tools"
    tools.mkdir()
    for name in ("paceline", "python"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    variables = {"PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(world.folder / "calls"), "FAILS": "test"}
    build = run({**SPEC, "phases": careless}, world.folder, {**variables, "IMAGE_REPOSITORY": REPOSITORY})
    assert not build.succeeds
    assert len(world.called("push")) == 1


def test_a_failed_push_is_a_failed_build(world: World) -> None:
    assert not world.build(FAILS="push").succeeds


def test_nothing_is_built_without_a_place_to_push_to(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    build = world.build(IMAGE_REPOSITORY="")
    assert build.ran == ["install", "pre_build"]
    assert "error: IMAGE_REPOSITORY " in capfd.readouterr().err


def test_a_pushed_tag_is_a_release(world: World) -> None:
    assert world.build(CODEBUILD_WEBHOOK_TRIGGER="tag/v1.4.2").succeeds
    assert "--tags semantic --version 1.4.2" in world.called("push")[0]


def test_not_every_tag_that_begins_with_a_v_is_a_release(world: World) -> None:
    assert world.build(CODEBUILD_WEBHOOK_TRIGGER="tag/vendor-drop").succeeds
    assert "semantic" not in world.called("push")[0]


def test_where_tags_never_move_a_build_has_its_number_alone(world: World) -> None:
    assert world.build(IMAGE_TAGS="none").succeeds
    assert "--tag build-17 --no-create" in world.called("push")[0]


@pytest.mark.parametrize("variables", [{"PUSH": "no"}, {"CODEBUILD_WEBHOOK_EVENT": "PULL_REQUEST_CREATED"}])
def test_the_image_of_a_pull_request_is_built_and_tested_but_never_pushed(
    variables: dict[str, str], world: World
) -> None:
    without_push = {"IMAGE_REPOSITORY": ""} if "PUSH" in variables else {}
    assert world.build(
        **variables, **without_push, LAYER_CACHE="yes" if "PUSH" in variables else "no"
    ).succeeds
    assert len(world.called("test")) == 1
    assert world.called("push") == []
    assert not [call for call in world.calls if call.startswith("docker")]


def test_a_failed_pull_request_is_a_failed_build(world: World) -> None:
    assert not world.build(PUSH="no", FAILS="test").succeeds


def test_base_images_of_ecr_are_pulled_with_a_login_for_their_region(world: World) -> None:
    (world.folder / "source").mkdir()
    hosts = [
        "763104351884.dkr.ecr.us-west-2.amazonaws.com",
        "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn",
    ]
    lines = [f"ARG BASE={hosts[0]}/pytorch-training:2.6.0\nFROM ${{BASE}}\n", f"FROM {hosts[1]}/x:1\n"]
    (world.folder / "source" / "Dockerfile").write_text("".join(lines))
    assert world.build().succeeds
    logins = [call.split()[-1] for call in world.calls if call.startswith("docker login")]
    assert sorted(logins) == sorted(hosts)
    assert "aws ecr get-login-password --region us-west-2" in world.calls


def test_layers_are_cached_where_that_was_requested(world: World) -> None:
    assert world.build(LAYER_CACHE="yes").succeeds
    assert f"--cache {REPOSITORY}:buildcache" in world.called("build")[0]
    logins = [call for call in world.calls if call.startswith("docker login")]
    assert logins == [f"docker login --username AWS --password-stdin {REPOSITORY.partition('/')[0]}"]


def test_no_credential_is_in_arguments_logs_or_reports(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.build(LAYER_CACHE="yes")
    captured = capfd.readouterr()
    assert SECRET not in captured.out + captured.err + "\n".join(world.calls)
    for file in (world.folder / "source").rglob("*"):
        assert file.is_dir() or SECRET not in file.read_text()


def test_reports_artifacts_and_cache_are_where_the_commands_write(world: World) -> None:
    assert world.build().succeeds
    source = world.folder / "source"
    (reports,) = SPEC["reports"].values()
    assert reports["file-format"] == "JUNITXML"
    assert [(source / reports["base-directory"] / name).exists() for name in reports["files"]] == [True]
    uploaded = {path.name for path in (source / SPEC["artifacts"]["base-directory"]).rglob("*.json")}
    assert uploaded == {"build.json", "test.json", "push.json"}
    assert SPEC["cache"]["paths"] == ["pip-cache/**/*"]


@pytest.mark.parametrize("verb", ["build", "test", "push"])
def test_every_flag_is_one_that_paceline_has(verb: str, world: World) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "paceline", "image", verb, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        pytest.skip(f"this paceline has no `image {verb}`, so the flags are NOT compared with it")
    world.build(LAYER_CACHE="yes", CODEBUILD_WEBHOOK_TRIGGER="tag/v1.4.2")
    flags = [word for word in world.called(verb)[0].split() if word.startswith("--")]
    assert [flag for flag in flags if flag not in result.stdout] == []


def test_phases_carry_variables_and_folders_over_and_finally_is_always_done(tmp_path: Path) -> None:
    spec = {
        "version": 0.2,
        "env": {"shell": "bash", "variables": {"WORD": "one"}},
        "phases": {
            "install": {"commands": ["export WORD=$WORD-two", "mkdir inner && cd inner"]},
            "build": {"commands": ["exit 3", "touch never"], "finally": ["echo $WORD >finally"]},
            "post_build": {"commands": ["echo $WORD $CODEBUILD_BUILD_SUCCEEDING >after"]},
        },
    }
    build = run(spec, tmp_path, {})
    assert [(phase.name, phase.failed) for phase in build.phases] == [
        ("install", None),
        ("build", "exit 3"),
        ("post_build", None),
    ]
    assert not build.succeeds
    assert (tmp_path / "inner" / "finally").read_text() == "one-two\n"
    assert (tmp_path / "inner" / "after").read_text() == "one-two 0\n"
    assert not (tmp_path / "inner" / "never").exists()


def test_the_runner_works_in_a_folder_with_a_blank_and_refuses_half_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = tmp_path / "two words"
    blank.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(blank))
    spec = {"version": 0.2, "phases": {"build": {"commands": ["export A=1", "test $A = 1"]}}}
    assert run(spec, tmp_path, {}).succeeds
    result = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "run_buildspec.py"), "--env", "HALF"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "--env HALF " in result.stderr


def test_the_runner_prints_what_it_would_run() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "run_buildspec.py"), "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [
        line.partition(":")[0]
        for line in result.stdout.splitlines()
        if line.startswith(("build:", "install:"))
    ] == [
        "install",
        "build",
        "build",
    ]
    assert json.dumps(SPEC)  # plain data: nothing that a YAML reader would have to run
