"""Provocations of E6 to E9: clusters, images, data, and requests to the dashboard."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.core.provoked import Codes, Provocation, raised
from tests.fixtures.servers.file_server import file_server

from paceline.dashboard.requests import number
from paceline.dashboard.run_index import RunIndex
from paceline.datasets.fetching import read_block, read_index
from paceline.datasets.index import Block
from paceline.images.build.engine import Engine, EngineKind
from paceline.images.probe.container import ContainerOptions, probe_image
from paceline.images.push.errors import classify_push_error
from paceline.images.push.publish import ImageReference, push_reference
from paceline.images.push.registry import Registry, login_file
from paceline.k8s.client.api import error_from_status
from paceline.k8s.client.eks import Aws
from paceline.k8s.client.helm import Helm
from paceline.k8s.client.hyp import Hyp
from paceline.launchers.ray.client import check_reachable
from paceline.storage.store import open_store
from paceline.tasks.cifar10.download import download

CLOSED_PORT = "127.0.0.1:1"


def _server_says(status: int) -> Provocation:
    def provoke(_folder: Path) -> Codes:
        def body() -> None:
            raise error_from_status(status, {"message": "no"}, "GET /x", "https://cluster")

        return raised(body)

    return provoke


@contextmanager
def _variables(**names: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _amazon_says(status: int, kind: str) -> Provocation:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("x-amzn-errortype", kind)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    def provoke(_folder: Path) -> Codes:
        with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            url = f"http://127.0.0.1:{server.server_port}"
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": url}
            try:
                with _variables(**keys):
                    aws = Aws("eu-central-1")
                    codes = raised(lambda: aws.ask("eks", "describe_cluster", name="x"))
                    aws.close()
                    return codes
            finally:
                server.shutdown()
                thread.join()

    return provoke


def _no_helm(_folder: Path) -> Codes:
    with _variables(PATH="/nowhere"):
        return raised(lambda: Helm(None, None).release("x", "y"))


def _engine(folder: Path, script: str) -> Engine:
    """An engine that does what this shell script does."""
    path = folder / "podman"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return Engine(kind=EngineKind.PODMAN, path=str(path), version="4.0")


def _image_that_fails(folder: Path) -> Codes:
    engine = _engine(folder, "cat > /dev/null; echo broken >&2; exit 1")
    return raised(lambda: probe_image(engine, "demo:1", {}, ContainerOptions()))


def _push_without_digest(folder: Path) -> Codes:
    engine = _engine(folder, "exit 0")
    goal = ImageReference(registry=Registry(CLOSED_PORT, None), repository="demo", tag="1")
    with login_file({}) as logins:
        return raised(lambda: push_reference(engine, "demo:1", goal, logins))


def _registry_says(words: str) -> Provocation:
    def provoke(_folder: Path) -> Codes:
        def body() -> None:
            raise classify_push_error(f"Error: {words}\n", "registry/x:1")

        return raised(body)

    return provoke


def _fetch(url: str, folder: Path) -> Callable[[], None]:
    return lambda: download(url, folder / "file", sha256="0" * 64, by_hand="", on_bytes=lambda *_: None)


def _other_file(folder: Path) -> Codes:
    with file_server(b"something else") as served:
        return raised(_fetch(served.url, folder))


def _short_shard(folder: Path) -> Codes:
    (folder / "train-0.shard").write_bytes(b"1234")
    block = Block(file="train-0.shard", start=0, size=10, sha256="")
    return raised(lambda: read_block(open_store(str(folder)), block))


def _no_shard(folder: Path) -> Codes:
    block = Block(file="train-0.shard", start=0, size=10, sha256="")
    return raised(lambda: read_block(open_store(str(folder)), block))


PROVOCATIONS: dict[str, Provocation] = {
    "E601": lambda _: raised(lambda: check_reachable(CLOSED_PORT)),
    "E611": _server_says(503),
    "E612": _server_says(401),
    "E613": _server_says(403),
    "E614": _server_says(404),
    "E615": _server_says(409),
    "E616": _server_says(410),
    "E617": _server_says(422),
    "E620": _no_helm,
    "E621": lambda _: raised(lambda: Hyp([], None).check()),
    "E622": _amazon_says(400, "InvalidParameterException"),
    "E623": _amazon_says(403, "AccessDeniedException"),
    "E624": _amazon_says(404, "ResourceNotFoundException"),
    "E701": _image_that_fails,
    "E710": _registry_says("an unknown answer"),
    "E711": _registry_says("no basic auth credentials"),
    "E712": _registry_says("error parsing HTTP 403 response body"),
    "E713": _registry_says("the tag already exists and cannot be overwritten because it is immutable"),
    "E715": _registry_says("name unknown: The repository with name 'x' does not exist in the registry"),
    "E716": _registry_says("dial tcp: lookup registry.example.com: no such host"),
    "E717": _push_without_digest,
    "E801": lambda folder: raised(_fetch("file:///etc/hosts", folder)),
    "E802": _other_file,
    "E806": _no_shard,
    "E807": lambda folder: raised(lambda: read_index(open_store(str(folder)))),
    "E808": _short_shard,
    "E901": lambda _: raised(lambda: number({"from": "x"}, "from")),
    "E902": lambda folder: raised(lambda: RunIndex.at(folder / "nowhere")),
}
