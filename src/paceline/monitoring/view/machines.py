"""Machines of a run: hosts, GPUs, and the nodes of its coordinator. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.events.follow import ColumnReader
from paceline.events.schema import CoordinatorRow, GpuRow, HostRow, Timings
from paceline.plan.codec import Json

RECENT_S = 300.0
SPACING_S = 10.0  # between two stored samples


@dataclass(slots=True)
class NodeTimings:
    """Latencies of one coordinator node."""

    commits: Timings | None = None
    fsyncs: Timings | None = None
    round_trips: Mapping[str, Timings] = field(default_factory=dict)  # by the other node's number
    _earlier: deque[tuple[float, Timings]] = field(
        default_factory=lambda: deque(maxlen=round(RECENT_S / SPACING_S) + 1)
    )

    def take(self, row: CoordinatorRow, at_s: float) -> None:
        self.commits = None if row.commits is None else Timings.read(row.commits)
        self.fsyncs = None if row.fsyncs is None else Timings.read(row.fsyncs)
        parts = (row.round_trips or "").split(";")
        pairs = [part.partition("=") for part in parts if part]
        self.round_trips = {node: Timings.read(part) for node, _, part in pairs}
        if self.commits is not None and (not self._earlier or at_s - self._earlier[-1][0] >= SPACING_S):
            self._earlier.append((at_s, self.commits))

    def commit_quantile(self, share: float, now_s: float) -> float | None:
        """Over the last five minutes; None without commits in them."""
        if self.commits is None:
            return None
        before = next((known for at_s, known in self._earlier if now_s - at_s <= RECENT_S), Timings())
        return self.commits.since(before).quantile(share)

    def to_dict(self, now_s: float) -> dict[str, Json]:
        return {
            "commit_p50_s": self.commit_quantile(0.5, now_s),
            "commit_p99_s": self.commit_quantile(0.99, now_s),
            "fsync_p50_s": None if self.fsyncs is None else self.fsyncs.quantile(0.5),
            "fsync_p99_s": None if self.fsyncs is None else self.fsyncs.quantile(0.99),
            "peer_round_trips_s": {node: timings.quantile(0.5) for node, timings in self.round_trips.items()},
        }


ROWS_KEPT = 120  # rows of a host, from which rates are made
RATE_S = 10.0
MAX_ROLES = 100  # role changes kept per node
_COUNTED = ("at_ns", "commits", "fsyncs", "round_trips")  # serialized separately
SILENT_S = 15.0  # without samples for this long, a machine counts as silent


@dataclass(slots=True)
class Machines:
    hosts: dict[str, deque[HostRow]] = field(default_factory=dict)
    gpus: dict[tuple[str, int], GpuRow] = field(default_factory=dict)
    throttled_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def take_hosts(self, columns: ColumnReader, shift_ns: int) -> None:
        """`shift_ns`: between the clock of this session and that of the run's first."""
        for row in columns.rows(*HostRow._fields):
            host = HostRow(*row)  # type: ignore[arg-type]  # as the log has it
            host = host._replace(at_ns=host.at_ns + shift_ns) if shift_ns else host
            self.hosts.setdefault(host.node, deque(maxlen=ROWS_KEPT)).append(host)

    def take_gpus(self, columns: ColumnReader, shift_ns: int) -> None:
        for row in columns.rows(*GpuRow._fields):
            gpu = GpuRow(*row)  # type: ignore[arg-type]  # as the log has it
            gpu = gpu._replace(at_ns=gpu.at_ns + shift_ns) if shift_ns else gpu
            before = self.gpus.get((gpu.node, gpu.gpu))
            if gpu.is_throttled and before is not None:
                key = (gpu.node, gpu.gpu)
                # There are no samples between two sessions.
                since_s = min(SILENT_S, max(0.0, (gpu.at_ns - before.at_ns) / 1e9))
                self.throttled_s[key] = self.throttled_s.get(key, 0.0) + since_s
            self.gpus[gpu.node, gpu.gpu] = gpu

    def rate(self, node: str, name: str) -> float | None:
        """Increase of a counter per second, over the last ten seconds."""
        rows = self.hosts[node]
        newest = rows[-1]
        oldest = next((row for row in rows if (newest.at_ns - row.at_ns) / 1e9 <= RATE_S), newest)
        before = getattr(oldest, name)
        after = getattr(newest, name)
        if before is None or after is None or newest.at_ns == oldest.at_ns:
            return None
        # Kernel counters restart from 0 on a reboot.
        return float(max(0.0, (after - before) / ((newest.at_ns - oldest.at_ns) / 1e9)))

    def is_silent(self, at_ns: int, now_ns: int) -> bool:
        return (now_ns - at_ns) / 1e9 > SILENT_S

    def hosts_to_dicts(self, now_ns: int) -> list[Json]:
        return [self._host(node, rows[-1], now_ns) for node, rows in sorted(self.hosts.items())]

    def _host(self, node: str, row: HostRow, now_ns: int) -> dict[str, Json]:
        sent = self.rate(node, "tcp_sent")
        again = self.rate(node, "tcp_retransmitted")
        return {
            "node": node,
            "cpu_share": row.cpu_share,
            "load": row.load,
            "memory_used_bytes": row.memory_used_bytes,
            "memory_size_bytes": row.memory_size_bytes,
            "disk_free_bytes": row.disk_free_bytes,
            "disk_size_bytes": row.disk_size_bytes,
            "net_in_bytes_per_s": self.rate(node, "net_in_bytes"),
            "net_out_bytes_per_s": self.rate(node, "net_out_bytes"),
            "loopback_bytes_per_s": self.rate(node, "loopback_bytes"),
            "disk_read_bytes_per_s": self.rate(node, "disk_read_bytes"),
            "disk_written_bytes_per_s": self.rate(node, "disk_written_bytes"),
            "retransmits_per_s": again,
            "loss_share": again / sent if sent and again is not None else None,
            "is_silent": self.is_silent(row.at_ns, now_ns),
        }

    def gpus_to_dicts(self) -> list[Json]:
        names = [name for name in GpuRow._fields if name not in ("at_ns",)]
        return [{name: getattr(row, name) for name in names} for _, row in sorted(self.gpus.items())]


@dataclass(slots=True)
class CoordinatorTrack:
    """The newest sample of each node, and the history of leadership."""

    nodes: dict[str, CoordinatorRow] = field(default_factory=dict)
    leader: int | None = None
    term: int = 0
    leader_changes: int = 0
    terms: list[tuple[float, int, int | None]] = field(default_factory=list)  # at_s, term, leader
    # By address: (at_s, role from then on).
    roles: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    timings: dict[str, NodeTimings] = field(default_factory=dict)  # by address
    numbers: dict[str, int] = field(default_factory=dict)  # node ids by address, as last reported
    last_s: float = 0.0

    def take(self, columns: ColumnReader, origin_ns: int) -> None:
        rows = [CoordinatorRow(*row) for row in columns.rows(*CoordinatorRow._fields)]  # type: ignore[arg-type]
        for row in rows:
            self.nodes[row.address] = row
            self.last_s = (row.at_ns - origin_ns) / 1e9
            self._note_role(row, self.last_s)
            if row.node is not None:  # the counters of a silent node are unknown, not 0
                self.numbers[row.address] = row.node
                self.timings.setdefault(row.address, NodeTimings()).take(row, self.last_s)
        newest = max((r for r in rows if r.term is not None), key=lambda r: r.term or 0, default=None)
        leader = None if newest is None else newest.leader
        term = self.term if newest is None else max(self.term, newest.term or 0)
        if (leader, term) != (self.leader, self.term):
            if leader is not None and self.terms and any(entry[2] is not None for entry in self.terms):
                self.leader_changes += 1
            at_s = (rows[0].at_ns - origin_ns) / 1e9 if rows else 0.0
            self.terms.append((at_s, term, leader))
            self.leader = leader
            self.term = term

    def _note_role(self, row: CoordinatorRow, at_s: float) -> None:
        role = "down" if row.node is None else row.role
        known = self.roles.setdefault(row.address, [])
        if not known or known[-1][1] != role:
            known.append((at_s, role))
            del known[:-MAX_ROLES]

    def name_of(self, address: str) -> str:
        """A node by its id, also while it is unreachable; by its address if the id was never reported."""
        number = self.numbers.get(address)
        return address if number is None else str(number)

    @property
    def voters(self) -> list[CoordinatorRow]:
        return [row for row in self.nodes.values() if row.is_voter]

    @property
    def missing(self) -> int:
        return sum(row.node is None or row.is_connected is False for row in self.voters)

    @property
    def round_trip_s(self) -> float | None:
        values = [row.round_trip_s for row in self.nodes.values() if row.round_trip_s is not None]
        return max(values, default=None)

    def _roles_to_json(self, address: str) -> list[Json]:
        return [[at_s, role] for at_s, role in self.roles[address]]

    def to_dict(self) -> dict[str, Json] | None:
        if not self.nodes:
            return None
        newest = max(self.nodes.values(), key=lambda row: row.commit or 0)
        names = [name for name in CoordinatorRow._fields if name not in _COUNTED]
        return {
            "has_leader": self.leader is not None,
            "leader": self.leader,
            "term": self.term,
            "commit": newest.commit,
            "applied": newest.applied,
            "voters": len(self.voters),
            "missing": self.missing,
            "leader_changes": self.leader_changes,
            "round_trip_s": self.round_trip_s,
            "terms": [[at_s, term, leader] for at_s, term, leader in self.terms[-200:]],
            "nodes": [
                {
                    **{n: getattr(row, n) for n in names},
                    **self._timed(address),
                    "name": self.name_of(address),
                    "is_reachable": row.node is not None,
                    "since_s": self.roles[address][-1][0],  # start of its role, or of being unreachable
                    "roles": self._roles_to_json(address),
                }
                for address, row in sorted(self.nodes.items())
            ],
        }

    def _timed(self, address: str) -> dict[str, Json]:
        known = self.timings.get(address)
        return {} if known is None else known.to_dict(self.last_s)
