"""Errors of Ray are reported at once and in plain words."""

import importlib.metadata
import socket
import subprocess
import sys

import pytest
from tests.fixtures.wording import Wording

from paceline.core.errors import ExitCode, NotReadyError
from paceline.launchers.ray.client import (
    RayStartError,
    RayUnreachableError,
    check_reachable,
    check_version,
    connect,
    describe_actor_death,
    start_with_retries,
)


def test_a_missing_ray_is_reported_with_what_to_install(wording: Wording) -> None:
    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    with wording.raises(NotReadyError) as caught:
        check_version(nothing)
    assert "paceline[ray]" in caught.value.hint
    assert caught.value.exit_code == ExitCode.NOT_READY


def test_an_old_ray_is_refused_and_a_new_one_is_not(wording: Wording) -> None:
    with wording.raises(NotReadyError):
        check_version(lambda _: "2.9.3")
    assert check_version(lambda _: "2.60.0") == "2.60.0"
    assert check_version(lambda _: "3.0.0.dev0") == "3.0.0.dev0"


def test_an_address_without_a_listener_is_unreachable(wording: Wording) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        check_reachable(f"127.0.0.1:{port}")
    with wording.raises(RayUnreachableError) as caught:
        connect(f"127.0.0.1:{port}", num_cpus=1)
    assert caught.value.exit_code == ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    "text",
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: Participant\nThe actor"
            " is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail:"
            " Worker unexpectedly exits with a connection error code 2. End of file. Some common causes"
        ),
        "The actor is dead because its node has died. Node Id: 12",
        (
            "The actor died because of an error raised in its creation task, ray::P\nTraceback\n"
            "ModuleNotFoundError: No module named 'paceline'"
        ),
        "The actor 12 is unavailable: RpcError",
        "something else",
    ],
    ids=["process", "node", "creation", "unavailable", "other"],
)
def test_an_error_of_ray_becomes_one_sentence(text: str, wording: Wording) -> None:
    wording(describe_actor_death(text))


def test_the_ray_driver_imports_no_torch_so_that_a_head_without_a_gpu_is_enough() -> None:
    drives = "paceline.training.run, paceline.launchers.ray.launcher, paceline.launchers.ray.elastic, ray"
    probe = f"import sys, {drives}; sys.exit('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_ray_that_comes_late_is_started_again_until_the_limit() -> None:
    late = iter([Exception("The current node timed out during startup."), TimeoutError("no answer"), None])
    undone: list[bool] = []

    def begin() -> None:
        if (error := next(late)) is not None:
            raise error

    start_with_retries(begin, lambda: undone.append(True), limit_s=60.0, now_s=lambda: 0.0)
    assert undone == [True, True]


def test_a_ray_that_never_starts_has_its_own_error_and_is_not_a_bug(wording: Wording) -> None:
    times = iter([0.0, 31.0, 62.0])

    def begin() -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does it

    with wording.raises(RayStartError) as caught:
        start_with_retries(begin, lambda: None, limit_s=60.0, now_s=lambda: next(times))
    assert caught.value.problems[0].code == "E210"
    assert caught.value.exit_code == 4


def test_what_is_no_delay_is_not_tried_again() -> None:
    def begin() -> None:
        raise RuntimeError("another version")

    with pytest.raises(RuntimeError):
        start_with_retries(begin, lambda: None, limit_s=60.0)
