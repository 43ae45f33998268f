"""Scenarios of network faults: partition-workers, partition-coordinators, drop-packets, delay-packets.

A worker that reaches no coordinator is excluded, fenced, and rejoins after the partition.
"""

from dataclasses import dataclass
from pathlib import Path

from paceline.coordinator.client.aio import UnreachableError
from paceline.coordinator.client.blocking import BlockingClient
from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.server.access_policy import Role
from paceline.events.read import History
from paceline.faults.scenarios.coordinator_nodes import PERFECT_LINK, CoordinatorNodes, LinkConditions, nodes
from paceline.faults.scenarios.expectations import Expectation, ScenarioReporter, at_least, at_most, exactly
from paceline.faults.scenarios.measurements import (
    Exclusion,
    fenced_and_alive,
    longest_pause_s,
    not_delayed,
    proofs,
    wait_until_excluded,
)
from paceline.faults.scenarios.training import TrainingRun, default_plan, training

WORKERS = 4
NODES = 3
PARTITION_WORKERS_TIMES = 3
ALONE_S = 0.5  # it stays partitioned this long after the others have continued


def partition_workers(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    seen: list[Exclusion] = []
    with (
        nodes(run_dir / "coordinators", NODES, with_proxies=True) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        assert cluster.links is not None, "the nodes have proxies"
        generation = run.until_in(WORKERS, 0)
        begun_ns = run.now_ns()
        for number in range(times):
            victim = f"worker-{number % WORKERS}"
            cut_ns = run.now_ns()
            cluster.links.cut([run.pids()[victim]], cluster.addresses)
            left_ns = wait_until_excluded(run, victim, generation)
            run.wait(ALONE_S)
            healed_ns = run.now_ns()
            cluster.links.heal()
            generation = run.until_in(WORKERS, generation)
            back_s = (run.now_ns() - healed_ns) / 1e9
            seen.append(Exclusion(victim, left_ns, (left_ns - cut_ns) / 1e9, back_s))
            reporter(f"cut {number + 1} of {times}: {victim} was left out and is back")
            reporter.so_far(_judge(run.history(), seen, begun_ns))
        history = run.finish(30, early=True)
    return [*reporter.settled(_judge(history, seen, begun_ns)), *proofs(run_dir, history, reporter)]


def _judge(history: History, seen: list[Exclusion], begun_ns: int) -> list[Expectation]:
    noticed_s = max(s.noticed_s for s in seen)
    back_s = max(s.back_s for s in seen)
    return [
        at_most("an isolated worker is excluded, maximum", noticed_s, 5.0, "s"),
        at_most("it is back after the partition heals, maximum", back_s, 3.0, "s"),
        at_most(
            "steps are committed throughout, longest pause", longest_pause_s(history, begun_ns), 1.0, "s"
        ),
        *fenced_and_alive(history, [(s.victim, s.left_ns) for s in seen], WORKERS),
    ]


PARTITION_COORDINATORS_TIMES = 2
ISOLATED_WORKER = "worker-0"  # on the side of the minority
ASK_S = 1.5  # how long requests to the minority are retried


@dataclass(slots=True)
class _Seen:
    left_out_s: float
    left_ns: int
    back_s: float
    minority_answers: int
    minority_commits: int


def partition_coordinators(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    plan = default_plan(workers=WORKERS, steps=1_000_000)
    seen: list[_Seen] = []
    with (
        nodes(run_dir / "coordinators", NODES, with_proxies=True) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        run.until_in(WORKERS, 0)
        begun_ns = run.now_ns()
        for number in range(times):
            alone = cluster.leader()
            seen.append(_cut(cluster, run, alone))
            reporter(
                f"partition {number + 1} of {times}: node {alone} and {ISOLATED_WORKER} were cut off,"
                " and are back"
            )
            reporter.so_far(_partition_coordinators_judge(run.history(), seen, begun_ns))
        leaders = {cluster.status(node).leader for node in cluster.addresses}
        history = run.finish(30, early=True)
    # Who follows whom is asked before the run ends, and judged with the rest.
    expectations = _partition_coordinators_judge(history, seen, begun_ns)
    expectations.insert(6, exactly("all nodes follow one leader in the end", len(leaders), 1))
    return [*reporter.settled(expectations), *proofs(run_dir, history, reporter)]


def _partition_coordinators_judge(history: History, seen: list[_Seen], begun_ns: int) -> list[Expectation]:
    return [
        exactly("the minority answers no request", sum(cut.minority_answers for cut in seen), 0),
        exactly("the minority commits no entry", sum(cut.minority_commits for cut in seen), 0),
        at_most("the minority's worker is excluded, maximum", max(s.left_out_s for s in seen), 6.0, "s"),
        at_most(
            "steps are committed throughout, longest pause", longest_pause_s(history, begun_ns), 1.0, "s"
        ),
        at_most("all are back after the partition heals, maximum", max(s.back_s for s in seen), 3.0, "s"),
        *fenced_and_alive(history, [(ISOLATED_WORKER, cut.left_ns) for cut in seen], WORKERS),
    ]


def _cut(cluster: CoordinatorNodes, run: TrainingRun, alone: int) -> _Seen:
    assert cluster.links is not None, "the nodes have proxies"
    rest = cluster.others(alone)
    pids = run.pids()
    generation = run.until_in(WORKERS, 0)
    many = [cluster.pid(other) for other in rest] + [
        pids[worker] for worker in pids if worker != ISOLATED_WORKER
    ]
    cut_ns = run.now_ns()
    cluster.links.cut(many, [alone])
    cluster.links.cut([cluster.pid(alone), pids[ISOLATED_WORKER]], rest)
    before = cluster.status(alone).commit
    answers = _request_of_minority(cluster, alone)
    left_ns = wait_until_excluded(run, ISOLATED_WORKER, generation)
    commits = cluster.status(alone).commit - before
    healed_ns = run.now_ns()
    cluster.links.heal()
    run.until_in(WORKERS, generation)
    cluster.leader()
    return _Seen((left_ns - cut_ns) / 1e9, left_ns, (run.now_ns() - healed_ns) / 1e9, answers, commits)


def _request_of_minority(cluster: CoordinatorNodes, node: int) -> int:
    """Send a write to the minority alone; returns the number of replies."""
    address = [cluster.addresses[node]]
    with BlockingClient(address, cluster.proof.of(Role.ADMIN), patience_s=ASK_S) as client:
        try:
            client.write("Runs.Create", pb.CreateRun(run=f"asked-of-{node}", min_workers=1), pb.Run)
        except UnreachableError:
            return 0
        return 1


# Proxies in front of the nodes break connections, stall them, or delay all traffic, by a
# seed. A worker that loses its connection reconnects; training calls no node in
# between.

BAD_LINK_WORKERS = 3
BAD_LINK_NODES = 3
BAD_LINK_TIMES = 8  # seconds of packet loss or delay
SEED = 7


def drop_packets(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    return _through(
        LinkConditions(lost_share=0.01, stall_share=0.03, stall_s=0.2, seed=SEED), run_dir, times, reporter
    )


def delay_packets(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
    return _through(LinkConditions(late_s=(0.02, 0.06), seed=SEED), run_dir, times, reporter)


def _through(
    conditions: LinkConditions, run_dir: Path, seconds: int, reporter: ScenarioReporter
) -> list[Expectation]:
    plan = default_plan(workers=BAD_LINK_WORKERS, steps=1_000_000)
    with (
        nodes(run_dir / "coordinators", BAD_LINK_NODES, with_proxies=True) as cluster,
        training(plan, run_dir, cluster.coordinators) as run,
    ):
        assert cluster.links is not None, "the nodes have proxies"
        run.until_in(BAD_LINK_WORKERS, 0)
        began_ns = run.now_ns()
        cluster.links.set_conditions(conditions)
        for second in range(seconds):
            run.wait(1.0)
            reporter(f"second {second + 1} of {seconds}: {_describe(conditions)}")
            reporter.so_far(_bad_lines_judge(run.history(), conditions, began_ns, run.now_ns()))
        ended_ns = run.now_ns()
        cluster.links.set_conditions(PERFECT_LINK)
        run.until_in(BAD_LINK_WORKERS, 0)  # all are in the newest generation, or come back to it now
        history = run.finish(30, early=True)
    return [
        *reporter.settled(_bad_lines_judge(history, conditions, began_ns, ended_ns)),
        *proofs(run_dir, history, reporter),
    ]


def _bad_lines_judge(
    history: History, conditions: LinkConditions, began_ns: int, ended_ns: int
) -> list[Expectation]:
    return [
        at_least("the network loses, stalls or delays data", _hit(conditions), 10),
        not_delayed(history, began_ns, ended_ns, "over a bad network"),
    ]


def _hit(conditions: LinkConditions) -> int:
    return conditions.lost + conditions.stalled + (conditions.passed if conditions.late_s[1] > 0 else 0)


def _describe(conditions: LinkConditions) -> str:
    if conditions.late_s[1] > 0:
        low, high = (1000 * bound for bound in conditions.late_s)
        return f"{conditions.passed} pieces late by {low:g} to {high:g} ms"
    return f"{conditions.passed} pieces passed, {conditions.stalled} stalled, {conditions.lost} lost"
