"""Missing requirements of `paceline benchmark keras` are reported before anything starts."""

import importlib.metadata
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.tasks.cifar_folder import cifar_folder
from tests.fixtures.wording import Wording

from paceline.comparison.benchmark.keras_runner import (
    INSTALL,
    absolute_storage,
    check_cluster,
    check_data,
    check_packages,
    too_small,
)
from paceline.comparison.benchmark.keras_schema import KerasSettings
from paceline.core.errors import ConfigError, ExitCode, NotReadyError
from paceline.launchers.ray.client import RayUnreachableError
from paceline.launchers.ray.resources import Node

GOOD = {"tensorflow": "2.21.0", "tf-keras": "2.21.0", "ray": "2.60.0"}


def installed(**changed: str | None) -> Callable[[str], str]:
    versions = {**GOOD, **{name.replace("_", "-"): version for name, version in changed.items()}}

    def version_of(name: str) -> str:
        result = versions.get(name)
        if result is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return result

    return version_of


def all_there(_name: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("changed", "hint"),
    [
        ({"tensorflow": None}, INSTALL),
        ({"tensorflow": "2.9.1"}, INSTALL),
        ({"tf_keras": None}, INSTALL),
        ({"tf_keras": "2.20.1"}, "pip install 'tf-keras==2.21.*'"),
        ({"ray": None}, "pip install 'paceline[ray]'"),
        ({"ray": "2.9.3"}, "pip install 'paceline[ray]'"),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_one_clear_error(
    changed: dict[str, str | None], hint: str, wording: Wording
) -> None:
    with wording.raises(NotReadyError) as caught:
        check_packages(installed(**changed), all_there)
    assert caught.value.hint == hint
    assert caught.value.exit_code == ExitCode.NOT_READY


def test_the_packages_of_the_extra_are_enough_and_so_is_tensorflow_for_cpus() -> None:
    check_packages(installed(), all_there)
    check_packages(installed(tensorflow=None, tensorflow_cpu="2.21.0"), all_there)
    check_packages()


def test_ray_without_the_requirements_of_ray_train_is_reported(wording: Wording) -> None:
    with wording.raises(NotReadyError):
        check_packages(installed(), lambda name: name != "pandas")


def test_a_cluster_without_room_is_shown_beside_what_is_needed() -> None:
    settings = KerasSettings(num_workers=3, threads=2)
    text = too_small([Node(name="a", cpus=4), Node(name="b", cpus=1)], settings)
    assert text is not None
    assert "worker-2" in text
    assert too_small([Node(name="a", cpus=4), Node(name="b", cpus=2)], settings) is None


def test_workers_on_gpus_are_refused_where_there_are_too_few(wording: Wording) -> None:
    settings = KerasSettings(num_workers=2, use_gpu=True)
    for too_few in (lambda: 0, lambda: 1):
        with wording.raises(NotReadyError):
            check_cluster("local", settings, too_few)
    check_cluster("local", settings, lambda: 2)
    check_cluster("local", KerasSettings(), lambda: 0)
    spread = [Node(name="a", cpus=4, gpus=1), Node(name="b", cpus=0, gpus=1)]
    assert too_small(spread, settings) is not None, "a GPU without a CPU is of no use"


def test_no_server_at_the_address_is_unreachable(wording: Wording) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with wording.raises(RayUnreachableError):
        check_cluster(f"127.0.0.1:{port}", KerasSettings())


def test_rays_client_is_refused_with_what_to_do_instead(wording: Wording) -> None:
    with wording.raises(ConfigError) as caught:
        check_cluster("ray://127.0.0.1:10001", KerasSettings())
    assert "--address auto" in caught.value.hint


def test_a_folder_without_images_is_refused_and_one_with_them_is_found(
    tmp_path: Path, wording: Wording
) -> None:
    with wording.raises(ConfigError):
        check_data(KerasSettings(data=str(tmp_path)))
    folder = cifar_folder(tmp_path)
    assert check_data(KerasSettings(data=str(tmp_path))).data == str(folder)
    assert check_data(KerasSettings(data="synthetic")).data == "synthetic"


def test_a_folder_of_checkpoints_is_a_full_path_and_a_uri_stays() -> None:
    assert absolute_storage(KerasSettings(storage="shared")).storage == str(Path.cwd() / "shared")
    for storage in ("", "s3://bucket/keras"):
        assert absolute_storage(KerasSettings(storage=storage)).storage == storage
