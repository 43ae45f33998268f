"""Three-node groups of real processes under load: paceline's coordinator, etcd and PySyncObj.

All on loopback, each node with a folder of its own on the same disk.
"""

import asyncio
import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from benchmarks.load import Figures, new_client
from paceline.coordinator.server.tokens import TOKENS_NAME, load_or_create_tokens

NODES = 3
_PYTHON = f"{shlex.quote(sys.executable)} -m"
STOP_S = 10.0


class DisturbedError(Exception):
    """The measurement is invalid."""


class Cluster(Protocol):
    """Three nodes that are up."""

    pids: list[int]

    def load(self, clients: int, seconds: float) -> Figures: ...


class Called:
    """A cluster whose clients are in a separate process."""

    def __init__(self, system: str, addresses: Sequence[str], pids: list[int], *more: str) -> None:
        self.addresses, self.pids = list(addresses), pids
        self._system, self._more = system, more

    def load(self, clients: int, seconds: float) -> Figures:
        order = [self._system, ",".join(self.addresses), str(clients), str(seconds), *self._more]
        return Figures(**json.loads(run_module("benchmarks.load", *order)))


class Inside:
    """A cluster whose clients are in its leader's process."""

    def __init__(self, nodes: "list[subprocess.Popen[str]]") -> None:
        self._nodes, self.pids = nodes, [node.pid for node in nodes]

    def load(self, clients: int, seconds: float) -> Figures:
        for node in self._nodes:
            assert node.stdin is not None, "its stdin is a pipe"
            print(clients, seconds, file=node.stdin, flush=True)
        results = [json.loads(_line(node)) for node in self._nodes]
        (answer,) = [each for each in results if each is not None]
        return Figures(**answer)


@contextmanager
def ours(folder: Path) -> Iterator[Called]:
    token_file = folder / TOKENS_NAME
    load_or_create_tokens(token_file)
    addresses = free_addresses(NODES)
    peers = ",".join(f"{number}={address}" for number, address in enumerate(addresses, start=1))
    quoted = shlex.quote(str(folder))
    orders = [
        f"{_PYTHON} paceline coordinator start --id {number} --peers {peers} --stop-with-stdin "
        f"--data-dir {quoted}/{number} --token-file {quoted}/{TOKENS_NAME}"
        for number in range(1, NODES + 1)
    ]
    with processes(orders, folder / "nodes.log") as nodes:
        yield Called("ours", addresses, [node.pid for node in nodes], str(token_file))


def leader_of(cluster: Called, token_file: Path) -> int:
    """The process that leads our cluster."""

    async def ask() -> str:
        async with new_client(cluster.addresses, token_file) as client:
            return await client.find_leader()

    return cluster.pids[cluster.addresses.index(asyncio.run(ask()))]


@contextmanager
def etcd(folder: Path) -> Iterator[Called]:
    clients, peers = free_addresses(NODES), free_addresses(NODES)
    names = [f"node{number}" for number in range(NODES)]
    cluster = ",".join(f"{name}=http://{peer}" for name, peer in zip(names, peers, strict=True))
    quoted = shlex.quote(str(folder))
    orders = [
        f"etcd --name {name} --data-dir {quoted}/{name} --initial-cluster {cluster} "
        f"--listen-client-urls http://{client} --advertise-client-urls http://{client} "
        f"--listen-peer-urls http://{peer} --initial-advertise-peer-urls http://{peer}"
        for name, client, peer in zip(names, clients, peers, strict=True)
    ]
    with processes(orders, folder / "nodes.log") as nodes:
        yield Called("etcd", clients, [node.pid for node in nodes])


@contextmanager
def pysyncobj(folder: Path, *, flush: bool, batch: bool) -> Iterator[Inside]:
    addresses = free_addresses(NODES)
    quoted = shlex.quote(str(folder))
    orders = [
        f"{_PYTHON} benchmarks.pysyncobj_peer {flush:d} {batch:d} {mine} "
        f"{','.join(other for other in addresses if other != mine)} {quoted}/journal-{number}"
        for number, mine in enumerate(addresses)
    ]
    with processes(orders, folder / "nodes.log") as nodes:
        for node in nodes:
            assert _line(node) == "ready", f"a node of PySyncObj did not start: see {folder / 'nodes.log'}"
        yield Inside(nodes)


def has_etcd() -> bool:
    return shutil.which("etcd") is not None


def has_pysyncobj() -> bool:
    return find_spec("pysyncobj") is not None


@contextmanager
def processes(orders: Sequence[str], log: Path) -> "Iterator[list[subprocess.Popen[str]]]":
    """All of them running; all gone afterwards."""
    with ExitStack() as stack:
        output = stack.enter_context(log.open("w"))
        started = []
        for order in orders:
            answers = subprocess.PIPE if "pysyncobj" in order else output
            node = subprocess.Popen(
                shlex.split(order), stdin=subprocess.PIPE, stdout=answers, stderr=output, text=True
            )
            stack.callback(_end, node)
            started.append(node)
        yield started


def run_module(module: str, *arguments: str) -> str:
    result = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {result.returncode}")
    return result.stdout


def free_addresses(count: int) -> list[str]:
    """Free just now; all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _line(node: "subprocess.Popen[str]") -> str:
    assert node.stdout is not None, "its stdout is a pipe"
    return node.stdout.readline().strip()


def _end(node: "subprocess.Popen[str]") -> None:
    node.terminate()
    try:
        node.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        node.kill()
        node.communicate()
