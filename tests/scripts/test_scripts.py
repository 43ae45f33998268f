"""The shell scripts do their steps in order, once, and stop at a failure; run for real."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.processes.command import ROOT
from tests.fixtures.wording import Wording

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.sh") if path.name != "lib.sh")
TOOLS = ("minikube", "helm", "kubectl", "docker", "aws")
# All that the scripts may use besides: whatever else is installed here must not be found.
BASICS: tuple[str, ...] = (
    "bash",
    "sh",
    "env",
    "dirname",
    "basename",
    "mktemp",
    "mkdir",
    "rm",
    "cp",
    "cmp",
    "cat",
    "grep",
)
BASICS += ("tar", "sha256sum", "git", "python3")


@dataclass(frozen=True, slots=True)
class ScriptResult:
    code: int
    out: str
    err: str
    calls: list[str]  # of this run


@dataclass(frozen=True, slots=True)
class World:
    """A machine with these tools, where nothing is installed yet."""

    folder: Path

    def run(
        self, script: str, *flags: str, without: str = "", typed: str | None = None, **variables: str
    ) -> ScriptResult:
        """`typed`: what a user types at a terminal; None: there is no terminal."""
        calls, tools = self.folder / "calls", self.folder / "tools"
        calls.write_text("")
        shutil.rmtree(tools, ignore_errors=True)
        tools.mkdir()
        for tool in TOOLS:
            if tool != without:
                (tools / tool).symlink_to(ROOT / "tests" / "fixtures" / "processes" / "stand_in.sh")
        for basic in BASICS:
            # Ours: what PATH has may be a shim that needs the rest of the machine.
            result = sys.executable if basic == "python3" else shutil.which(basic)
            assert result is not None, f"these tests need {basic}"
            (tools / basic).symlink_to(result)
        paceline = tools / "paceline"
        paceline.write_text(f'#!/usr/bin/env sh\nexec {sys.executable} -m paceline "$@"\n')
        paceline.chmod(0o755)
        keyboard, terminal = pty.openpty()
        if typed is not None:
            os.write(keyboard, typed.encode())
        outcome = subprocess.run(
            ["/usr/bin/env", "bash", str(ROOT / "scripts" / script), *flags],
            cwd=self.folder,
            env={
                "PATH": str(tools),
                "HOME": str(self.folder),
                "CALLS": str(calls),
                "STATE": str(self.folder / "state"),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                **variables,
            },
            stdin=subprocess.DEVNULL if typed is None else terminal,
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(keyboard)
        os.close(terminal)
        return ScriptResult(
            outcome.returncode, outcome.stdout, outcome.stderr, calls.read_text().splitlines()
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def order(calls: list[str], *parts: str) -> list[int]:
    """Where each of these is called first."""
    return [next(number for number, call in enumerate(calls) if part in call) for part in parts]


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is missing: apt-get install shellcheck"
)
def test_shellcheck_reports_nothing() -> None:
    files = [*(ROOT / "scripts").glob("*.sh"), ROOT / "tests" / "fixtures" / "processes" / "stand_in.sh"]
    command = ["shellcheck", "-x", *map(str, files)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout == ""
    assert result.returncode == 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_lists_every_flag_and_an_unknown_one_is_refused(script: str, world: World) -> None:
    result = world.run(script, "--help")
    assert result.code == 0
    assert "--dry-run" in result.out
    refused = world.run(script, "--nonsense")
    assert (refused.code, refused.calls) == (1, [])
    first = refused.err.splitlines()[0]
    assert first.startswith("error: ")
    assert first.endswith(" --nonsense")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_prints_commands_and_calls_nothing(script: str, world: World, wording: Wording) -> None:
    result = world.run(script, "--dry-run", TAG="1")
    assert result.code == 0
    assert result.calls == []
    assert all(line.startswith("+ ") for line in result.out.splitlines())
    assert result.out
    wording(result.err.splitlines()[-1])


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_flag_without_a_value_is_one_clear_error(script: str, world: World) -> None:
    flag = "--tag" if script == "build-ray-image.sh" else "--profile"
    result = world.run(script, flag)
    assert result.code == 1
    assert result.err.startswith(f"error: {flag} ")
    assert "\nhint: " in result.err


def test_minikube_gets_two_nodes_and_storage_that_works_on_both(world: World) -> None:
    result = world.run("setup-minikube.sh")
    assert result.code == 0, result.err
    places = order(
        result.calls,
        "minikube start -p paceline --nodes 2 --cpus 4 --memory 8g --driver docker",
        "wait --for=condition=Ready nodes",
        "addons enable metrics-server",
        "addons enable volumesnapshots",
        "addons enable csi-hostpath-driver",
        "addons disable default-storageclass",
        "patch storageclass csi-hostpath-sc",
        "rollout status deployment/metrics-server",
    )
    assert places == sorted(places)


def test_a_second_set_up_changes_nothing(world: World) -> None:
    world.run("setup-minikube.sh")
    again = world.run("setup-minikube.sh")
    assert again.code == 0, again.err
    changing = ("start", "enable", "disable", "patch")
    assert [call for call in again.calls if any(f" {word} " in call for word in changing)] == []


def test_ray_is_installed_by_helm_and_the_cluster_is_rendered_by_us(world: World) -> None:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    result = world.run("install-ray.sh")
    assert result.code == 0, result.err
    places = order(
        result.calls,
        "helm repo add kuberay",
        "helm --kube-context paceline upgrade --install kuberay-operator",
        "image load paceline-ray:1",
        "namespace-paceline.yaml",
        "apply -f",
        "wait --for=condition=RayClusterProvisioned raycluster/paceline",
    )
    assert places == sorted(places)
    (upgrade,) = (call for call in result.calls if " upgrade " in call)
    assert "--version 1.7.0 -n ray-system --wait" in upgrade
    applied = (world.folder / "state" / "applied").read_text()
    assert "kind: RayCluster" in applied
    assert "image: paceline-ray:1" in applied
    assert "nodePort: 30265" in applied
    assert "kind: NetworkPolicy" in applied
    assert "kind: RoleBinding" in applied


def test_installing_twice_installs_once_and_a_changed_cluster_is_applied(world: World) -> None:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    world.run("install-ray.sh")
    again = world.run("install-ray.sh")
    assert again.code == 0, again.err
    changing = ("upgrade", "add", "load", "create", "apply", "label")
    assert [call for call in again.calls if any(f" {word} " in call for word in changing)] == []
    changed = world.run("install-ray.sh", "--num-workers", "3")
    assert changed.code == 0, changed.err
    assert any(" apply -f " in call for call in changed.calls)


def test_without_a_cluster_nothing_is_installed(world: World, wording: Wording) -> None:
    result = world.run("install-ray.sh")
    assert result.code == 1
    wording(result.err)
    assert not any("helm" in call for call in result.calls)


SETUP_STEPS: tuple[str, ...] = (
    "minikube start",
    "wait --for",
    "enable metrics-server",
    "enable volumesnapshots",
    "enable csi-hostpath",
)
SETUP_STEPS += (
    "disable default-storageclass",
    "disable storage-provisioner",
    "patch storageclass",
    "rollout status",
)
INSTALL_STEPS: tuple[str, ...] = (
    "repo add",
    "repo update",
    "upgrade --install",
    "image load",
    "create -f .*namespace-ray-system",
    "create -f .*namespace-paceline",
)
INSTALL_STEPS += ("apply -f", "RayClusterProvisioned")


@pytest.mark.parametrize("broken", SETUP_STEPS)
def test_a_failing_step_of_the_set_up_stops_it_with_its_name_and_the_next_run_continues(
    broken: str, world: World
) -> None:
    result = world.run("setup-minikube.sh", FAIL_ON=broken)
    assert result.code == 1
    assert broken in result.calls[-1], "nothing is called after it"
    message = result.err.splitlines()
    assert message[-2].startswith("error: ")
    assert "exit code 7" in message[-2]
    assert message[-1].startswith("hint: ")
    again = world.run("setup-minikube.sh")
    assert again.code == 0, again.err


@pytest.mark.parametrize("broken", INSTALL_STEPS)
def test_a_failing_step_of_the_installation_stops_it_with_its_name(broken: str, world: World) -> None:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    result = world.run("install-ray.sh", FAIL_ON=broken)
    assert result.code == 1
    assert re.search(broken, result.calls[-1])
    assert "exit code 7" in result.err
    assert world.run("install-ray.sh").code == 0


@pytest.mark.parametrize(
    ("script", "tool"),
    [
        ("setup-minikube.sh", "minikube"),
        ("setup-minikube.sh", "kubectl"),
        ("setup-minikube.sh", "docker"),
        ("install-ray.sh", "helm"),
        ("run-benchmark.sh", "kubectl"),
        ("build-ray-image.sh", "docker"),
    ],
)
def test_a_missing_tool_is_named_before_anything_starts(script: str, tool: str, world: World) -> None:
    result = world.run(script, without=tool)
    assert result.code == 1
    assert result.err.startswith(f"error: {tool} ")
    assert "\nhint: " in result.err
    assert result.calls == []


def results(seconds: float, accuracy: float) -> str:
    given = {"training_time_seconds": seconds, "test_accuracy": accuracy}
    return json.dumps(given).replace('"', '\\"')


def installed(world: World) -> dict[str, str]:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    world.run("install-ray.sh")
    base, many = results(30.0, 0.7), results(20.0, 0.69)
    return {
        "REMOTE": str(world.folder / "on the head"),
        "BASELINE": f'printf "%s" "{base}" > baseline_results.json',
        "DISTRIBUTED": f'test -f baseline_results.json && printf "%s" "{many}" > ray_results_2workers.json',
    }


def test_the_benchmark_runs_baseline_first_copies_the_results_and_compares(world: World) -> None:
    commands = installed(world)
    result = world.run("run-benchmark.sh", "--out", "out", **commands)
    assert result.code == 0, result.err
    data = json.loads(result.out)
    assert data == json.loads((world.folder / "out" / "comparison.json").read_text())
    assert data["speedup"] == 1.5
    assert data["efficiency"] == 0.75
    assert {path.name for path in (world.folder / "out").iterdir()} == {
        "baseline_results.json",
        "ray_results_2workers.json",
        "comparison.json",
    }
    assert world.run("run-benchmark.sh", "--out", "out", **commands).code == 0, "and again"


def test_one_command_may_do_both_and_gets_the_knobs(world: World) -> None:
    commands = installed(world)
    both = 'echo "{\\"epochs\\": $EPOCHS, \\"batch\\": $BATCH_SIZE, \\"n\\": $NUM_WORKERS}" > comparison.json'
    variables = {"REMOTE": commands["REMOTE"], "BENCHMARK": both, "EPOCHS": "5"}
    result = world.run("run-benchmark.sh", "--batch-size", "128", **variables)
    assert result.code == 0, result.err
    assert json.loads(result.out) == {"epochs": 5, "batch": 128, "n": 2}


def test_without_a_head_the_benchmark_reports_that(world: World, wording: Wording) -> None:
    world.run("setup-minikube.sh")
    result = world.run("run-benchmark.sh")
    assert result.code == 1
    wording(result.err)


def test_a_benchmark_that_fails_stops_and_nothing_is_compared(world: World) -> None:
    commands = installed(world)
    result = world.run("run-benchmark.sh", "--out", "out", **{**commands, "DISTRIBUTED": "exit 3"})
    assert result.code == 1
    assert "2 workers" in result.err
    assert "exit code 3" in result.err
    assert not (world.folder / "out").exists()


@pytest.mark.parametrize("script", ["run-benchmark.sh", "setup-minikube.sh"])
def test_a_number_that_is_none_is_refused(script: str, world: World, wording: Wording) -> None:
    flag = "--nodes" if script == "setup-minikube.sh" else "--epochs"
    result = world.run(script, flag, "many")
    assert result.code == 1
    wording(result.err.splitlines()[0])


def test_cleaning_up_removes_everything_in_order(world: World) -> None:
    installed(world)
    result = world.run("cleanup.sh")
    assert result.code == 0, result.err
    places = order(
        result.calls,
        "delete rayjobs.ray.io -l app.kubernetes.io/name=paceline",
        "delete rayclusters.ray.io -l app.kubernetes.io/name=paceline",
        "uninstall kuberay-operator",
        "delete crd rayclusters.ray.io",
        "delete namespace paceline",
        "delete namespace ray-system",
        "minikube delete -p paceline",
    )
    assert places == sorted(places)
    assert not (world.folder / "state").exists()
    assert world.run("cleanup.sh").code == 0, "and once more, when nothing is there"


@pytest.mark.parametrize("broken", INSTALL_STEPS)
def test_what_is_half_installed_is_cleaned_up(broken: str, world: World) -> None:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    world.run("install-ray.sh", FAIL_ON=broken)
    result = world.run("cleanup.sh")
    assert result.code == 0, result.err
    assert not (world.folder / "state").exists()


@pytest.mark.parametrize("broken", ["delete rayclusters", "uninstall", "delete namespace"])
def test_what_cannot_be_removed_alone_goes_with_the_nodes(broken: str, world: World) -> None:
    installed(world)
    result = world.run("cleanup.sh", FAIL_ON=broken)
    assert result.code == 0, result.err
    assert not (world.folder / "state").exists()


def with_a_minikube_of_the_user(world: World) -> None:
    """Two nodes and an operator that no script of ours has created."""
    (world.folder / ".minikube" / "profiles" / "paceline").mkdir(parents=True)
    state = world.folder / "state"
    state.mkdir()
    (state / "nodes").touch()
    (state / "ns-ray-system").touch()
    (state / "crds").touch()
    (state / "operator").write_text('{"info":{"description":"Install complete"}}')


def deletes(result: ScriptResult, what: str) -> bool:
    """`what`: the last words of a call."""
    return any(f"delete {what}" in call for call in result.calls)


def deletions(result: ScriptResult) -> list[str]:
    return [call for call in result.calls if re.search(" (delete|uninstall) ", call)]


def test_what_the_user_had_before_stays(world: World) -> None:
    with_a_minikube_of_the_user(world)
    installed(world)
    result = world.run("cleanup.sh")
    assert result.code == 0, result.err
    assert not any("uninstall" in call for call in result.calls)
    assert not deletes(result, "-p paceline")
    assert deletes(result, "namespace paceline"), "that one is ours"
    assert not deletes(result, "namespace ray-system")
    assert "--delete-minikube" in result.err
    assert {path.name for path in (world.folder / "state").iterdir()} >= {"nodes", "operator"}


def test_a_namespace_of_the_user_keeps_what_is_not_ours(world: World) -> None:
    world.run("build-ray-image.sh")
    world.run("setup-minikube.sh")
    (world.folder / "state" / "ns-paceline").touch()
    world.run("install-ray.sh")
    result = world.run("cleanup.sh", "--keep-minikube")
    assert result.code == 0, result.err
    mine = [call for call in deletions(result) if " -n paceline " in call]
    assert len(mine) == 3
    assert all("-l app.kubernetes.io/name=paceline,app.kubernetes.io/managed-by=paceline" in c for c in mine)
    assert not deletes(result, "namespace paceline")


@pytest.mark.parametrize(("typed", "is_deleted"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_a_minikube_of_the_user_is_deleted_only_after_a_yes(
    typed: str, is_deleted: bool, world: World
) -> None:
    with_a_minikube_of_the_user(world)
    result = world.run("cleanup.sh", typed=typed)
    assert result.code == 0, result.err
    assert deletes(result, "-p paceline") is is_deleted


def test_a_flag_deletes_a_minikube_of_the_user_without_a_question(world: World) -> None:
    with_a_minikube_of_the_user(world)
    assert deletes(world.run("cleanup.sh", "--delete-minikube"), "-p paceline")


def test_a_minikube_whose_start_failed_is_deleted_without_a_question(world: World) -> None:
    world.run("setup-minikube.sh", FAIL_ON="wait --for")
    assert deletes(world.run("cleanup.sh"), "-p paceline")


def test_an_operator_of_another_version_is_not_upgraded(world: World) -> None:
    with_a_minikube_of_the_user(world)
    result = world.run("install-ray.sh", "--operator-version", "1.6.0")
    assert result.code == 1
    assert not any(" upgrade " in call for call in result.calls)


def test_build_load_and_install_use_one_image_with_what_the_benchmark_needs(world: World) -> None:
    (build,) = (
        words
        for words in map(shlex.split, world.run("build-ray-image.sh", "--dry-run").out.splitlines())
        if "buildx" in words
    )
    image = build[build.index("--tag") + 1]
    assert "EXTRAS=ray,keras" in build
    install = world.run("install-ray.sh", "--dry-run").out
    assert f"image load {image}\n" in install
    assert f"--image {image} " in install


def test_an_image_that_was_built_again_replaces_the_one_of_the_cluster(world: World) -> None:
    installed(world)
    world.run("build-ray-image.sh", BUILD_ID="b2")
    result = world.run("install-ray.sh")
    assert result.code == 0, result.err
    places = order(result.calls, "image load paceline-ray:1", "delete raycluster paceline", "apply -f")
    assert places == sorted(places)
    again = world.run("install-ray.sh")
    assert not any("image load" in call for call in again.calls)


def test_an_image_that_was_never_built_is_named_before_anything_is_created(world: World) -> None:
    world.run("setup-minikube.sh")
    result = world.run("install-ray.sh")
    assert result.code == 1
    assert "build-ray-image.sh" in result.err.splitlines()[-1]
    assert not any(" apply " in call for call in result.calls)


def test_an_image_without_tensorflow_is_reported_before_the_benchmark(world: World) -> None:
    installed(world)
    remote = str(world.folder / "on the head")
    result = world.run("run-benchmark.sh", REMOTE=remote, FAIL_ON="find_spec")
    assert result.code == 1
    assert "--extras ray,keras" in result.err.splitlines()[-1]
    assert not any("benchmark keras" in call for call in result.calls)


def test_leftovers_are_reported_and_are_an_error(world: World, wording: Wording) -> None:
    installed(world)
    result = world.run("cleanup.sh", "--keep-minikube", FAIL_ON="uninstall")
    assert result.code == 1
    wording("\n".join(result.err.splitlines()[-2:]))
    assert any("delete namespace" in call for call in result.calls), "the other steps were made"
    assert not any("minikube delete" in call for call in result.calls)


@pytest.mark.parametrize("missing", ["helm", "minikube", "kubectl"])
def test_cleaning_up_works_without_a_tool_that_was_never_there(missing: str, world: World) -> None:
    result = world.run("cleanup.sh", without=missing)
    assert result.code == 0, result.err


def test_the_image_is_built_with_a_cache_in_the_registry(world: World) -> None:
    flags = ["--registry", "registry.example.com", "--tag", "1", "--push"]
    login = ["--login", "ecr", "--aws-profile", "me", "--aws-region", "eu-west-1"]
    result = world.run("build-ray-image.sh", *flags, *login)
    assert result.code == 0, result.err
    places = order(
        result.calls, "aws --region eu-west-1 --profile me ecr get-login-password", "docker buildx build"
    )
    assert places == sorted(places)
    (build,) = (call for call in result.calls if "buildx build" in call)
    assert "--tag registry.example.com/paceline-ray:1" in build
    assert "--cache-from type=registry,ref=registry.example.com/paceline-ray:buildcache" in build
    assert "--cache-to type=registry,ref=registry.example.com/paceline-ray:buildcache,mode=max" in build
    assert "password-of-the-registry" not in "".join(result.calls) + result.err + result.out


def test_without_a_registry_the_image_stays_here_and_pushing_is_refused(world: World) -> None:
    result = world.run("build-ray-image.sh", "--tag", "1")
    assert result.code == 0, result.err
    (build,) = (call for call in result.calls if "buildx build" in call)
    assert build.split()[-2] == "--load"
    assert "cache" not in build
    refused = world.run("build-ray-image.sh", "--tag", "1", "--push")
    assert (refused.code, refused.calls) == (1, [])


def test_the_image_runs_as_an_unprivileged_user_and_has_the_ray_of_the_manifests() -> None:
    from paceline.k8s.render.pod import USER
    from paceline.k8s.spec.job import RAY_VERSION

    lines = (ROOT / "docker" / "ray.Dockerfile").read_text(encoding="utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] == str(USER)
    assert f"ARG RAY_VERSION={RAY_VERSION}" in lines
    script = (ROOT / "scripts" / "build-ray-image.sh").read_text(encoding="utf-8")
    assert f"RAY_VERSION:-{RAY_VERSION}" in script
