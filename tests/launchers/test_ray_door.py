"""Errors of Ray are reported at once and in plain words."""

import importlib.metadata
import socket
import subprocess
import sys

import pytest

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


def test_a_missing_ray_is_told_with_what_to_install() -> None:
    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    with pytest.raises(NotReadyError, match="not installed") as told:
        check_version(nothing)
    assert told.value.hint == "pip install 'paceline[ray]'"
    assert told.value.exit_code == ExitCode.NOT_READY


def test_an_old_ray_is_refused_and_a_new_one_is_not() -> None:
    with pytest.raises(NotReadyError, match=r"Ray 2\.9\.3 is installed, but 2\.60 or later"):
        check_version(lambda _: "2.9.3")
    assert check_version(lambda _: "2.60.0") == "2.60.0"
    assert check_version(lambda _: "3.0.0.dev0") == "3.0.0.dev0"


def test_nobody_listening_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        check_reachable(f"127.0.0.1:{port}")
    with pytest.raises(RayUnreachableError, match="no Ray at") as told:
        connect(f"127.0.0.1:{port}", num_cpus=1)
    assert told.value.exit_code == ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: Participant\nThe actor"
            " is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail:"
            " Worker unexpectedly exits with a connection error code 2. End of file. Some common causes",
            "its process died (Worker unexpectedly exits with a connection error code 2)",
        ),
        ("The actor is dead because its node has died. Node Id: 12", "its node was lost"),
        (
            "The actor died because of an error raised in its creation task, ray::P\nTraceback\n"
            "ModuleNotFoundError: No module named 'paceline'",
            "it could not be started: ModuleNotFoundError: No module named 'paceline'",
        ),
        ("The actor 12 is unavailable: RpcError", "its process cannot be reached any more"),
        ("something else", "its process died"),
    ],
)
def test_what_ray_says_becomes_one_sentence(text: str, words: str) -> None:
    assert describe_actor_death(text) == words


def test_who_drives_ray_has_no_torch_so_that_a_head_without_a_gpu_is_enough() -> None:
    drives = "paceline.training.run, paceline.launchers.ray.launcher, paceline.launchers.ray.elastic, ray"
    probe = f"import sys, {drives}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_ray_that_comes_late_is_started_again_until_the_limit() -> None:
    late = iter([Exception("The current node timed out during startup."), TimeoutError("no answer"), None])
    undone: list[bool] = []

    def begin() -> None:
        if (error := next(late)) is not None:
            raise error

    start_with_retries(begin, lambda: undone.append(True), limit_s=60.0, now_s=lambda: 0.0)
    assert undone == [True, True]


def test_a_ray_that_never_comes_has_an_error_of_its_own_and_is_no_bug() -> None:
    times = iter([0.0, 31.0, 62.0])

    def begin() -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does it

    with pytest.raises(RayStartError) as caught:
        start_with_retries(begin, lambda: None, limit_s=60.0, now_s=lambda: next(times))
    assert caught.value.problems[0].code == "E210"
    assert caught.value.exit_code == 4
    assert "timed out during startup" in caught.value.what


def test_what_is_no_delay_is_not_tried_again() -> None:
    def begin() -> None:
        raise RuntimeError("another version")

    with pytest.raises(RuntimeError):
        start_with_retries(begin, lambda: None, limit_s=60.0)
