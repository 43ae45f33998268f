"""Table of scenarios."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.faults.scenarios import coordinators, corruption, hosts, network, resize, worker_hosts, workers
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter

Body = Callable[[Path, int, ScenarioReporter], list[Expectation]]
HOSTS = "on hosts that are network namespaces; needs root"
PROXIES = "by TCP proxies in front of the coordinators; needs no root"


@dataclass(frozen=True, slots=True)
class Scenario:
    what: str
    body: Body
    times: int  # default number of faults
    how: str = ""  # how the fault is injected, where that depends on the machine
    on_hosts: Callable[[int], Body] | None = None  # the body for a number of hosts, if it runs on hosts


SCENARIOS: dict[str, Scenario] = {
    "kill-worker": Scenario(
        "kill -9 of one worker after another", workers.kill_worker, workers.KILL_WORKER_TIMES
    ),
    "kill-two": Scenario("kill -9 of two workers at once", workers.kill_two, workers.KILL_TWO_TIMES),
    "freeze-worker": Scenario(
        "SIGSTOP of a worker, and SIGCONT once the others continue without it",
        workers.freeze_worker,
        workers.FREEZE_WORKER_TIMES,
    ),
    "kill-leader": Scenario(
        "kill -9 of the coordinator's leader, of three nodes",
        coordinators.kill_leader,
        coordinators.KILL_LEADER_TIMES,
    ),
    "kill-server": Scenario(
        "kill -9 of the primary parameter server", workers.kill_server, workers.KILL_SERVER_TIMES
    ),
    "quorum-lost": Scenario(
        "kill -9 of two of three coordinator nodes, which restart later",
        coordinators.quorum_lost,
        coordinators.QUORUM_LOST_TIMES,
    ),
    "resize": Scenario(
        "2 → 4 → 3 workersrepeatedly, with kill -9 or SIGSTOP of one in between",
        resize.resize,
        resize.DEFAULT_TIMES,
    ),
    "slow-worker": Scenario(
        "one of five workers slows down gradually, up to a factor of ten",
        workers.slow_worker,
        workers.SLOW_WORKER_TIMES,
    ),
    "partition-workers": Scenario(
        "a worker cannot reach any coordinator",
        network.partition_workers,
        network.PARTITION_WORKERS_TIMES,
        PROXIES,
    ),
    "partition-coordinators": Scenario(
        "the coordinator's leader and one worker are partitioned from two nodes and three workers",
        network.partition_coordinators,
        network.PARTITION_COORDINATORS_TIMES,
        PROXIES,
    ),
    "drop-packets": Scenario(
        "connections to and among the coordinators break and stall, for a second each time",
        network.drop_packets,
        network.BAD_LINK_TIMES,
        PROXIES,
    ),
    "delay-packets": Scenario(
        "all traffic to and among the coordinators is delayed by 20 to 60 ms, for a second each time",
        network.delay_packets,
        network.BAD_LINK_TIMES,
        PROXIES,
    ),
    "full-disk": Scenario(
        "a coordinator's disk is full",
        coordinators.full_disk,
        coordinators.FULL_DISK_TIMES,
        "by a small tmpfs with root, else by a limit on the size of its files",
    ),
    "nan-gradient": Scenario(
        "a shard's gradient is NaN at one step", corruption.nan_gradient, corruption.NAN_GRADIENT_TIMES
    ),
    "corrupt-checkpoint": Scenario(
        "a byte of the newest checkpoint is changed before the run resumes",
        corruption.corrupt_checkpoint,
        corruption.CORRUPT_CHECKPOINT_TIMES,
    ),
    "lose-node-and-rejoin": Scenario(
        "a coordinator node and half of the workers are lost at once, and rejoin",
        coordinators.lose_node,
        coordinators.LOSE_NODE_TIMES,
    ),
    "lose-host": Scenario(
        "the host of the coordinator's leader is lost, with all its processes, and comes back",
        hosts.lose_host(),
        hosts.LOSE_TIMES,
        HOSTS,
        hosts.lose_host,
    ),
    "cut-host": Scenario(
        "the host of the coordinator's leader is cut off from the other hosts",
        hosts.cut_host(),
        hosts.CUT_TIMES,
        HOSTS,
        hosts.cut_host,
    ),
    "one-way-cut": Scenario(
        "the host of the coordinator's leader sends nothing, then receives nothing",
        hosts.one_way_cut(),
        hosts.ONE_WAY_TIMES,
        HOSTS,
        hosts.one_way_cut,
    ),
    "bad-links": Scenario(
        "5 % of the packets to every host are lost, others delayed by 10 to 30 ms, for a second each time",
        hosts.bad_links(),
        hosts.BAD_LINKS_TIMES,
        HOSTS,
        hosts.bad_links,
    ),
    "flapping-link": Scenario(
        "the link of the leader's host is down for 0.3 s",
        hosts.flapping_link(),
        hosts.FLAP_TIMES,
        HOSTS,
        hosts.flapping_link,
    ),
    "lose-worker-host": Scenario(
        "a host with a worker, its agent and a coordinator node is lost, and comes back",
        worker_hosts.lose_worker_host(),
        worker_hosts.LOSE_TIMES,
        HOSTS,
        worker_hosts.lose_worker_host,
    ),
    "cut-worker-host": Scenario(
        "a host with a worker, its agent and a coordinator node sends nothing, then receives nothing",
        worker_hosts.cut_worker_host(),
        worker_hosts.CUT_TIMES,
        HOSTS,
        worker_hosts.cut_worker_host,
    ),
}
