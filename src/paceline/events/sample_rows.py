"""What is measured beside the steps, and how is it written? As rows of columns, about once a second.

None stands for what this machine cannot say. Totals only ever grow; whoever wants
a rate looks at two rows. Readers of what was trained pass them by; `paceline.watch`
reads them.
"""

from typing import NamedTuple


class HostRow(NamedTuple):
    """A machine at one moment (kind `hosts`).

    The launcher writes one of its own each second (`who` is watch), which paces alerts too. On each other
    machine one worker does, less often (`who` is watch@NODE).
    """

    at_ns: int
    node: str  # the host's name
    cpu_share: float | None  # of all cores, since the row before
    load: float | None  # mean number of runnable processes over a minute
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    disk_free_bytes: int | None  # where the run's folder is
    disk_size_bytes: int | None
    disk_read_bytes: int | None  # total
    disk_written_bytes: int | None  # total
    net_in_bytes: int | None  # total, of all interfaces but the loopback
    net_out_bytes: int | None  # total
    loopback_bytes: int | None  # total; processes of one host talk this way
    tcp_sent: int | None  # total of segments
    tcp_retransmitted: int | None  # total of segments that had to be sent again


class ProcessRow(NamedTuple):
    """A participant's process at one moment (kind `processes`)."""

    at_ns: int
    worker: str
    pid: int
    memory_bytes: int  # resident
    cpu_share: float  # of one core, since the row before
    is_stopped: bool  # by SIGSTOP or the like


class LinkRow(NamedTuple):
    """A worker's TCP connections at one moment, by what its kernel measured (kind `links`)."""

    at_ns: int
    node: str  # where the worker is
    connections: int  # by which something was sent since the row before
    round_trip_s: float  # the kernel's smoothed one: the median of these connections
    slowest_s: float  # of these connections
    sent: int  # total of segments
    sent_again: int  # total of segments that had to be sent again


class GpuRow(NamedTuple):
    """A GPU at one moment (kind `gpus`)."""

    at_ns: int
    node: str
    gpu: int
    uuid: str
    name: str
    utilization: float | None
    memory_used_bytes: int | None
    memory_size_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None  # total
    is_throttled: bool | None  # its clock is held down by power or heat
    uncorrected_errors: int | None  # total


class CustomRow(NamedTuple):
    """What a task told by `paceline.metric` (kind `custom`)."""

    at_ns: int
    step: int  # the worker's own count
    name: str
    value: float


class CoordinatorRow(NamedTuple):
    """A node of the run's coordinator at one moment, by its own words (kind `coordinators`)."""

    at_ns: int
    address: str
    node: int | None  # None: it does not answer
    role: str
    is_voter: bool
    leader: int | None
    term: int | None
    commit: int | None
    applied: int | None
    lag: int | None  # entries that it lacks, says the leader
    is_connected: bool | None  # to the leader, says the leader
    round_trip_s: float | None  # of being asked
    # Since the node started, counted by length (events/timings.py): while it led, from a command's arrival
    # until it was applied; writes to its log until they were on disk; and, for each other node behind its
    # number and =, from sending it entries until it said that it has them.
    commits: str | None = None
    fsyncs: str | None = None
    round_trips: str | None = None
    elections: int | None = None  # that it stood in, since it started
    proposals_failed: int | None = None  # whose outcome it could not tell, or which it had no room for


SAMPLE_KINDS: dict[str, tuple[str, ...]] = {
    "hosts": HostRow._fields,
    "processes": ProcessRow._fields,
    "gpus": GpuRow._fields,
    "links": LinkRow._fields,
    "custom": CustomRow._fields,
    "coordinators": CoordinatorRow._fields,
}
