"""Strangers on the network of a run on hosts: every socket is known, and none serves, admits or obeys them.

A new socket beyond loopback fails this test until it is in `PROOFS`, with what it requires. Sockets of gloo,
NCCL and torch's store trust their network (docs/concepts/security.md); no run here uses them.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import grpc
import pytest
from tests.fixtures.processes.command import assert_nothing_was_lost
from tests.fixtures.runs.host_runs import ENDLESS, fleet_on_hosts, kill_participant
from tests.fixtures.servers.listening import (
    Answer,
    Capture,
    ListeningSocket,
    ask,
    flood,
    listening_on,
    recording,
    until_written,
)
from tests.fixtures.waiting import until

from paceline.coordinator.client.endpoints import open_coordinators
from paceline.coordinator.methods import path
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.tls import init_pki, parse_node
from paceline.coordinator.state.model import FLEET
from paceline.core.clock import unix_now_s
from paceline.core.errors import PeerLostError
from paceline.events.read import History
from paceline.faults.scenarios.host_fleet import PACELINE, FleetRun, HostFleet
from paceline.faults.scenarios.measurements import is_guarded, updates
from paceline.faults.scenarios.training import events_of
from paceline.launchers.agents.wire import MAX_HELLO_BYTES
from paceline.plan.catalog import MODES, Channel
from paceline.transport import tcp_wire
from paceline.transport.handshake import NO_GENERATION, Claim
from paceline.worker.tls import client_tls_context

PROOFS = {  # what listens beyond loopback, by the command of its process, and what it asks for
    "paceline coordinator start": "a certificate of the cluster's authority",
    "paceline.worker.entry.zygote": "the run's secret, for these two participants and their generation",
    "paceline train": "the secret of the run's offer",
    "paceline dashboard": "a token",
    "paceline metrics serve": "a token",
}
HTTP = ("paceline dashboard", "paceline metrics serve")
MARKER = b"a stranger says hello"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
OPENINGS = {
    "nothing": b"",
    "text": MARKER,
    "random": bytes(range(256)) * 64,
    "http": b"GET /healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "http2": PREFACE,
    "a cut frame": PREFACE + b"\xff\xff\xff",
    "an oversized claim": b"PCLH" + b"\xff" * 30,
    "an oversized hello": b"PLA1" + (1 << 31).to_bytes(4, "big") * 2,
    "a cut hello": b"PLA1" + MAX_HELLO_BYTES.to_bytes(4, "big") + bytes(4) + b"{",
    "a hello": b"PLA1" + (48).to_bytes(4, "big") + bytes(4) + b'{"name":"a","secret":"%s"}' % (b"0" * 22),
}
REFUSED = re.compile(rb"^HTTP/1.. 4\d\d |Error code: (400|401|501|505)<")
ALERT = 21  # the kind of a TLS record with a reason for the end
HALF_OPEN = 150
WINDOW_BYTES = 32


@dataclass(slots=True)
class Product:
    fleet: HostFleet
    run: FleetRun
    capture: Capture
    has_servers: bool

    def until_all_train(self, after: int = 0) -> int:
        """Wait for a state after this one in which both workers train; returns its number."""
        if not self.has_servers:
            return self.run.until_in(2, after=after)
        self.run.until(lambda history: is_guarded(history) and started(history) > after, "both train")
        done = updates(self.run.log.read())
        self.run.until(lambda history: updates(history) > done + 20, "updates are made")
        return started(self.run.log.read())

    def sockets(self) -> list[ListeningSocket]:
        return [found for host in self.fleet.nodes.network for found in listening_on(host)]

    def beyond_loopback(self) -> list[ListeningSocket]:
        return [found for found in self.sockets() if found.is_beyond_loopback]

    def kinds(self) -> set[str]:
        return {kind_of(found) for found in self.beyond_loopback()}

    def workers(self) -> list[pb.Worker]:
        request = pb.ListWorkers(run=self.run_name(), with_ended=True)
        with open_coordinators(self.fleet.nodes.coordinators).blocking_client(60.0) as client:
            return list(client.read("Members.List", request, pb.WorkerList).workers)

    def run_name(self) -> str:
        with open_coordinators(self.fleet.nodes.coordinators).blocking_client(60.0) as client:
            runs = client.read("Runs.List", pb.ListRuns(), pb.RunList).runs
        (name,) = [run.run for run in runs if run.run != FLEET]
        return name


def started(history: History) -> int:
    return sum(event.who.startswith("worker-") for event in events_of(history, "worker_started"))


@contextmanager
def product(folder: Path, mode: str) -> Iterator[Product]:
    """Every part that listens, on addresses that the whole network reaches."""
    has_servers = MODES[mode].channel is Channel.STORE
    with fleet_on_hosts(folder, agents=2, slots=2 if has_servers else 1) as fleet:
        network = fleet.nodes.network
        host = network.host(fleet.command_host)
        with recording(network, folder / "packets") as capture:
            shape = [*ENDLESS, "--num-workers", "2", "--checkpoint-every", "20"]
            run = fleet.start_training("--mode", mode, *shape)
            made = Product(fleet, run, capture, has_servers)
            made.until_all_train()
            listening = ["--host", host.address, "--port", "0", "--token-file", "token"]
            for command in (["dashboard", "run"], ["metrics", "serve", "run"]):
                host.start([*PACELINE, *command, *listening], log=fleet.log_of(command[0]))
            until(lambda: made.kinds() == set(PROOFS), "every part listens")
            yield made


def kind_of(found: ListeningSocket) -> str:
    return next((kind for kind in PROOFS if kind in found.command), "")


@pytest.mark.parametrize("mode", ["ssgd", pytest.param("asgd", marks=pytest.mark.soak)])
def test_strangers_neither_join_nor_read_nor_replay_nor_stop_a_run(tmp_path: Path, mode: str) -> None:
    with product(tmp_path / "hosts", mode) as made:
        sockets = made.sockets()
        unknown = [found for found in sockets if found.is_beyond_loopback and not kind_of(found)]
        assert not unknown, "these are in no list of what proves who may connect"
        found = [found for found in sockets if found.is_beyond_loopback]
        assert {kind_of(each) for each in found} == set(PROOFS), "each part was started"
        before = made.workers()
        for each in found:
            check_no_answer(each)
        check_foreign_certificates(made, tmp_path / "foreign")
        check_foreign_runs(made, found)
        check_replays(made, found)
        assert made.workers() == before, "no worker was lost, and none came"
        check_floods(made, found)
        made.run.stop()
        check_nothing_was_readable(made)
    assert_nothing_was_lost(made.fleet.run_dir)


def check_no_answer(found: ListeningSocket) -> None:
    is_http = kind_of(found) in HTTP
    for name, opening in OPENINGS.items():
        answer = ask(found.place, opening, ends=not (is_http and name == "http"))
        where = f"{name} to {found}: {answer}"
        if is_http and answer.plain:
            assert REFUSED.search(answer.plain), where
            assert b"paceline_" not in answer.plain, where
        else:
            assert not answer.plain or is_alert(answer.plain), where
        if not is_http:
            inside = ask(found.place, opening, tls=True)
            assert inside == Answer(), f"in TLS, {where}"


def is_alert(data: bytes) -> bool:
    return data[0] == ALERT and len(data) < 10


def check_foreign_certificates(made: Product, folder: Path) -> None:
    """Callers of the coordinator without a certificate, and with those of another cluster."""
    own = made.fleet.nodes.folder / "pki"
    init_pki(folder, [parse_node("1=127.0.0.1")], now_s=unix_now_s(), days=1)
    ca = (own / "ca.crt").read_bytes()
    foreign = [(folder / f"admin.{end}").read_bytes() for end in ("key", "crt")]
    end_run = pb.EndRun(run=made.run_name(), phase=pb.RUN_STOPPED).SerializeToString()
    requests = {path("Nodes", "Status"): b"", path("Runs", "End"): end_run, path("Members", "Join"): b""}
    for credentials in (
        grpc.ssl_channel_credentials(ca),
        grpc.ssl_channel_credentials(ca, *foreign),
        grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes(), *foreign),
    ):
        for address in made.fleet.nodes.addresses.values():
            with grpc.secure_channel(address, credentials) as channel:
                for method, request in requests.items():
                    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
                    with pytest.raises(grpc.RpcError) as refused:
                        call(request, timeout=60)
                    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def check_foreign_runs(made: Product, found: list[ListeningSocket]) -> None:
    """Workers that hold the secret of another run, and know everything else of this one."""
    run = made.run_name()
    alive = (pb.WORKER_JOINED, pb.WORKER_ACTIVE)
    participants = [worker for worker in made.workers() if worker.phase in alive]
    newest = made.until_all_train()
    pairs = [(one, other) for one, other in permutations(participants, 2) if one.address]
    for acceptor, dialer in pairs:
        host, _, port = acceptor.address.rpartition(":")
        context = client_tls_context(acceptor.facts["certificate"])
        for number in (newest, newest + 1, NO_GENERATION):
            names = (dialer.worker, dialer.incarnation, acceptor.worker, acceptor.incarnation)
            claim = Claim(run, number, *names)
            guess = claim.key(os.urandom(32))
            with (
                socket.create_connection((host, int(port)), timeout=60.0) as plain,
                context.wrap_socket(plain, server_hostname=host) as connection,
            ):
                connection.sendall(claim.to_bytes())
                with pytest.raises((PeerLostError, OSError)):
                    tcp_wire.prove_token(connection, guess, side=b"connects", other=b"accepts")
                with pytest.raises((PeerLostError, OSError)):
                    tcp_wire.receive_into(connection, memoryview(bytearray(1)))
    assert len({each.place for each in found if "zygote" in each.command}) == 2
    assert len({one.address for one, _ in pairs}) == 2


def check_replays(made: Product, found: list[ListeningSocket]) -> None:
    """What any client has sent since the start, TLS and all, is sent again to where it was sent."""
    until_written(made.capture, MARKER)
    places = {each.place: each for each in found}
    observer = made.fleet.nodes.network.observer
    replayed = set()
    for (source, _, target, port), data in made.capture.streams().items():
        if source != observer and (target, port) in places:
            ask((target, port), data)
            replayed.add(kind_of(places[target, port]))
    assert {"paceline coordinator start", "paceline.worker.entry.zygote", "paceline train"} <= replayed


def check_floods(made: Product, found: list[ListeningSocket]) -> None:
    """With half-open connections to every socket of the run a lost worker is still replaced."""
    newest = made.until_all_train()
    with ExitStack() as stack:
        for each in found:
            if kind_of(each) not in HTTP:
                stack.enter_context(flood(each.place, HALF_OPEN))
        kill_participant(made.run, "worker-1")
        made.until_all_train(after=newest)


def check_nothing_was_readable(made: Product) -> None:
    packets = made.capture.file.read_bytes()
    assert MARKER in packets, "what is sent in plain text was recorded"
    states = list((made.fleet.run_dir / "checkpoints").rglob("*.safetensors"))
    assert states
    for state in states:
        data = state.read_bytes()
        windows = [data[at : at + WINDOW_BYTES] for at in range(0, len(data) - WINDOW_BYTES, WINDOW_BYTES)]
        telling = [window for window in windows if len(set(window)) > WINDOW_BYTES // 2]
        assert telling, f"{state} has numbers"
        assert not any(window in packets for window in telling)
    for private in made.fleet.nodes.folder.glob("pki/*.key"):
        assert private.read_bytes()[60:100] not in packets
