"""How is the coordinator of a run that trains? Each of its nodes is asked for its own view, and timed."""

import json
from contextlib import suppress
from pathlib import Path

import grpc.aio

from paceline.app import cluster_access, run_seat
from paceline.app.cluster_status import LEADER, LEARNER, SILENT
from paceline.clock import monotonic_s
from paceline.coordinator.blocking import BlockingClient
from paceline.coordinator.client import RefusedError, UnreachableError
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.shell.private_files import SecretError
from paceline.errors import PacelineError
from paceline.events.sample_rows import CoordinatorRow
from paceline.events.timings import Timings

PATIENCE_S = 1.0


class CoordinatorLook:
    """Finds the coordinator in the run's folder as soon as it is written there."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._client: BlockingClient | None = None
        self._addresses: list[str] = []

    def rows(self, at_ns: int) -> list[CoordinatorRow]:
        client = self._found()
        if client is None:
            return []
        rows = self._look(client, at_ns)
        # When the run ends its coordinator may end with it: that it is silent then is no news.
        return rows if self._is_there() else []

    def _look(self, client: BlockingClient, at_ns: int) -> list[CoordinatorRow]:
        answers = {address: self._ask(client, address) for address in self._addresses}
        there = [status for status, _ in answers.values() if status is not None]
        newest = max(there, key=lambda s: (s.role == LEADER, s.term, s.commit), default=None)
        peers = {} if newest is None else {peer.node: peer for peer in newest.peers}
        self._addresses += sorted({p.address for p in peers.values() if p.address} - set(self._addresses))
        by_address = {peer.address: peer for peer in peers.values()}
        return [
            _row(at_ns, address, status, took_s, by_address.get(address), newest)
            for address, (status, took_s) in answers.items()
        ]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _found(self) -> BlockingClient | None:
        if self._client is None and self._is_there():
            # Half written, or gone again with the run: then it is found at the next look, or never.
            with suppress(PacelineError, SecretError, json.JSONDecodeError, OSError):
                seat = run_seat.find(self._run_dir)
                where = cluster_access.Where(
                    usual_folder=self._run_dir, at=seat.addresses, token_file=seat.token_file
                )
                found = cluster_access.find(where)
                self._client = BlockingClient(found.addresses, found.access, patience_s=PATIENCE_S)
                self._addresses = list(found.addresses)
        return self._client

    def _is_there(self) -> bool:
        """A run that is at work says in its folder where its coordinator is."""
        return (self._run_dir / run_seat.NAME).exists()

    @staticmethod
    def _ask(client: BlockingClient, address: str) -> tuple[pb.NodeStatus | None, float | None]:
        began_s = monotonic_s()
        try:
            status = client.of_node(address, "Status", pb.StatusRequest())
        except (grpc.aio.AioRpcError, RefusedError, UnreachableError):
            return None, None
        return status, monotonic_s() - began_s


def _row(
    at_ns: int,
    address: str,
    status: pb.NodeStatus | None,
    took_s: float | None,
    peer: pb.PeerStatus | None,
    newest: pb.NodeStatus | None,
) -> CoordinatorRow:
    is_voter = peer is None or peer.is_voter
    by_leader = peer is not None and newest is not None and newest.role == LEADER
    lag, is_connected = (peer.lag, peer.is_connected) if by_leader and peer is not None else (None, None)
    if status is None:
        return CoordinatorRow(
            at_ns, address, None, SILENT, is_voter, None, None, None, None, lag, False, None
        )
    role = status.role if is_voter else LEARNER
    leader = status.leader or (status.node if status.role == LEADER else None)
    return CoordinatorRow(
        at_ns,
        address,
        status.node,
        role,
        is_voter,
        leader,
        status.term,
        status.commit,
        status.applied,
        lag,
        is_connected,
        took_s,
        _word(status.commit_timings),
        _word(status.fsync_timings),
        _words(status),
        status.elections,
        status.proposals_failed,
    )


def _word(timings: pb.Timings) -> str | None:
    """None: it counts by other bounds, or is of an older version and does not count."""
    found = Timings.of(timings.counts, timings.total_s)
    return None if found is None else found.word()


def _words(status: pb.NodeStatus) -> str | None:
    told = [(peer.node, _word(peer.round_trip_timings)) for peer in status.peers]
    return ";".join(f"{node}={word}" for node, word in told if word is not None) or None
