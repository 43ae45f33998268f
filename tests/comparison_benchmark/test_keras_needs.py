"""Is it said before anything starts what `paceline benchmark keras` lacks?"""

import importlib.metadata
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.cifar_folder import cifar_folder

from paceline.comparison.benchmark.keras_runner import (
    INSTALL,
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
        found = versions.get(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    return version_of


def all_there(_name: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("changed", "what", "hint"),
    [
        ({"tensorflow": None}, "needs TensorFlow, which is not installed", INSTALL),
        ({"tensorflow": "2.9.1"}, "TensorFlow 2.9.1 is installed, but 2.21 or later is needed", INSTALL),
        ({"tf_keras": None}, "needs tf-keras", INSTALL),
        ({"tf_keras": "2.20.1"}, "they must be of one version", "pip install 'tf-keras==2.21.*'"),
        ({"ray": None}, "needs Ray, which is not installed", "pip install 'paceline[ray]'"),
        (
            {"ray": "2.9.3"},
            "Ray 2.9.3 is installed, but 2.60 or later is needed",
            "pip install 'paceline[ray]'",
        ),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_one_clear_error(
    changed: dict[str, str | None], what: str, hint: str
) -> None:
    with pytest.raises(NotReadyError) as told:
        check_packages(installed(**changed), all_there)
    assert what in told.value.what
    assert told.value.hint == hint
    assert told.value.exit_code == ExitCode.NOT_READY


def test_the_packages_of_the_extra_are_enough_and_so_is_tensorflow_for_cpus() -> None:
    check_packages(installed(), all_there)
    check_packages(installed(tensorflow=None, tensorflow_cpu="2.21.0"), all_there)
    check_packages()


def test_ray_without_what_ray_train_needs_is_told() -> None:
    with pytest.raises(NotReadyError, match="Ray Train needs pandas, not installed here"):
        check_packages(installed(), lambda name: name != "pandas")


def test_a_cluster_without_room_is_shown_beside_what_is_needed() -> None:
    settings = KerasSettings(num_workers=3, threads=2)
    text = too_small([Node(name="a", cpus=4), Node(name="b", cpus=1)], settings)
    assert text is not None
    assert "worker-2" in text
    assert too_small([Node(name="a", cpus=4), Node(name="b", cpus=2)], settings) is None


def test_nobody_at_the_address_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RayUnreachableError, match=f"no Ray at 127.0.0.1:{port}"):
        check_cluster(f"127.0.0.1:{port}", KerasSettings())


def test_rays_client_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(ConfigError, match="not through Ray's client") as told:
        check_cluster("ray://127.0.0.1:10001", KerasSettings())
    assert "--address auto" in told.value.hint


def test_a_folder_without_images_is_refused_and_one_with_them_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cifar10 has no data"):
        check_data(KerasSettings(data=str(tmp_path)))
    folder = cifar_folder(tmp_path)
    assert check_data(KerasSettings(data=str(tmp_path))).data == str(folder)
    assert check_data(KerasSettings(data="synthetic")).data == "synthetic"
