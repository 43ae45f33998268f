"""Provocations of E2: a machine that lacks something."""

import fcntl
import importlib.metadata
import socket
import threading
from pathlib import Path

from tests.core.provoked import Codes, Provocation, guarded, printed_codes, raised

from paceline.config.environment import World
from paceline.coordinator.admin.launch import write_compose
from paceline.core.disk import exclusive
from paceline.dashboard.launch import Settings
from paceline.dashboard.server import serve
from paceline.launchers.ray.client import check_version
from paceline.tasks.cifar10.download import download


def _no_such_package(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def _taken_port(folder: Path) -> Codes:
    (folder / "index.html").write_text("a page")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = Settings(place=folder, token="t", port=port, page=folder)  # of a test
        return raised(lambda: serve(settings, print))


def _someone_downloads(folder: Path) -> Codes:
    def fetch() -> None:
        where = "http://127.0.0.1:1/file"
        download(where, folder / "file", sha256="", by_hand="", on_bytes=lambda *_: None)

    with (folder / "file.part").open("ab") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        return raised(fetch)


def _no_gpu(_folder: Path) -> Codes:
    import torch
    from tests.monitoring.scripted_log import a_plan

    from paceline.plan.plan import Device, Transport
    from paceline.worker.entry.torchrun import check_plan_here

    if torch.cuda.is_available():  # then there is one, and this cannot be provoked here
        return {"E205"}
    plan = a_plan(workers=1, mode="ddp", device=Device.CUDA, transport=Transport.GLOO)
    return raised(lambda: check_plan_here(plan, World()))


def _other_version(_folder: Path) -> Codes:
    from paceline.worker.entry.torchrun import check_hello, hello_message

    mine = hello_message(World())
    return raised(lambda: check_hello({**mine, "torch": "0.1"}, 1, mine))


def _no_page(folder: Path) -> Codes:
    settings = Settings(place=folder, token="t", page=folder)  # of a test
    return raised(lambda: serve(settings, print))


def _no_folder(folder: Path) -> Codes:
    (folder / "file").write_text("no folder")
    return guarded(lambda: (folder / "file" / "below").mkdir())


def _folder_in_use(folder: Path) -> Codes:
    codes: list[Codes] = []

    def enter() -> None:
        with exclusive(folder):
            pass

    with exclusive(folder):
        other = threading.Thread(target=lambda: codes.append(raised(enter)))
        other.start()
        other.join()
    return codes[0]


PROVOCATIONS: dict[str, Provocation] = {
    "E200": lambda folder: printed_codes(folder, "ray", "list", "--state", str(folder)),
    "E201": lambda _: raised(lambda: check_version(_no_such_package)),
    "E202": _taken_port,
    "E203": lambda folder: raised(
        lambda: write_compose(folder / "none" / "compose.yaml", 3, "image:1", folder / "pki")
    ),
    "E204": _someone_downloads,
    "E209": _folder_in_use,
    "E205": _no_gpu,
    "E206": _no_page,
    "E207": _other_version,
    "E208": _no_folder,
}
