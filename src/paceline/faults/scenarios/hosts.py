"""Scenarios on hosts that are network namespaces: lose-host, cut-host, one-way-cut, bad-links, flapping-link.

The coordinator's nodes run on the hosts with certificates; the leader's host is struck while a run trains.
A step calls no node, so steps continue; nothing that was committed may be lost or done twice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.events.read import History
from paceline.faults.hosts.network import Impairment
from paceline.faults.hosts.requirements import cannot_delay
from paceline.faults.scenarios.expectations import (
    Expectation,
    ScenarioReporter,
    at_most,
    exactly,
    not_judged,
)
from paceline.faults.scenarios.host_nodes import HostNodes, host_nodes
from paceline.faults.scenarios.measurements import not_delayed, proofs
from paceline.faults.scenarios.training import TrainingRun, default_plan, events_of, training

HOSTS = 3  # by default
WORKERS = 3
LOSE_TIMES = 3
CUT_TIMES = 2
ONE_WAY_TIMES = 2  # once in each direction
BAD_LINKS_TIMES = 8  # seconds
FLAP_TIMES = 5
WATCH_S = 1.0  # training continues for this long after each fault
FLAP_S = 0.3
BAD = Impairment(delay_s=0.02, jitter_s=0.01, loss_share=0.05)
WITHOUT_DELAY = Impairment(loss_share=0.05)

Body = Callable[[Path, int, ScenarioReporter], list[Expectation]]
Strike = Callable[[HostNodes, TrainingRun, int, "_Measured"], str]


@dataclass(slots=True)
class _Measured:
    new_leader_s: list[float] = field(default_factory=list)  # after each fault that needs one
    minority_answers: int = 0
    minority_commits: int = 0
    notes: list[str] = field(default_factory=list)


def lose_host(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _lose)


def cut_host(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _cut)


def one_way_cut(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _cut_one_way)


def bad_links(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _impair)


def flapping_link(hosts: int = HOSTS) -> Body:
    return _scenario(hosts, _flap)


def _lose(nodes: HostNodes, run: TrainingRun, _number: int, measured: _Measured) -> str:
    lost = nodes.leader()
    struck_ns = run.now_ns()
    nodes.lose(lost)
    new = _until_another_leads(nodes, run, lost)
    measured.new_leader_s.append((run.now_ns() - struck_ns) / 1e9)
    run.wait(WATCH_S)
    nodes.restart(lost)
    return f"host {lost} led and was lost; node {new} leads now"


def _cut(nodes: HostNodes, run: TrainingRun, _number: int, measured: _Measured) -> str:
    alone = nodes.leader()
    struck_ns = run.now_ns()
    nodes.network.isolate(alone)
    new = _until_another_leads(nodes, run, alone)
    measured.new_leader_s.append((run.now_ns() - struck_ns) / 1e9)
    before = nodes.status(alone).commit
    measured.minority_answers += nodes.answers_alone(alone)
    measured.minority_commits += nodes.status(alone).commit - before
    nodes.network.heal()
    return f"host {alone} led and was cut off; node {new} leads now"


def _cut_one_way(nodes: HostNodes, run: TrainingRun, number: int, measured: _Measured) -> str:
    struck = nodes.leader()
    is_mute = number % 2 == 0
    struck_ns = run.now_ns()
    if is_mute:
        nodes.network.mute(struck)
    else:
        nodes.network.deafen(struck)
    new = _until_another_leads(nodes, run, struck)
    measured.new_leader_s.append((run.now_ns() - struck_ns) / 1e9)
    nodes.network.heal()
    what = "sent nothing" if is_mute else "received nothing"
    return f"host {struck} led and {what}; node {new} leads now"


def _impair(nodes: HostNodes, run: TrainingRun, number: int, measured: _Measured) -> str:
    """From the first second on. Where packets cannot be delayed they are only lost, and that is reported."""
    if number == 0:
        delay_reason = cannot_delay()
        impairment = BAD if delay_reason is None else WITHOUT_DELAY
        measured.notes.append(_describe(impairment) + ("" if delay_reason is None else f" ({delay_reason})"))
        for host in nodes.network:
            nodes.network.impair(host.number, impairment)
    run.wait(1.0)
    return f"{measured.notes[0]}; node {nodes.leader()} leads"


def _flap(nodes: HostNodes, run: TrainingRun, _number: int, _measured: _Measured) -> str:
    struck = nodes.leader()
    nodes.network.link_down(struck)
    run.wait(FLAP_S)
    nodes.network.link_up(struck)
    run.wait(FLAP_S)
    return f"the link of host {struck} was down for {FLAP_S:g} s; node {nodes.leader()} leads"


def _describe(impairment: Impairment) -> str:
    text = f"{impairment.loss_share:.0%} of packets lost"
    if impairment.delay_s:
        text += f", delayed by {1000 * impairment.delay_s:g} ± {1000 * impairment.jitter_s:g} ms"
    return text


def _until_another_leads(nodes: HostNodes, run: TrainingRun, struck: int) -> int:
    others = nodes.others(struck)
    led: set[int] = set()

    def is_replaced(_: History) -> bool:
        led.clear()
        led.update(nodes.status(other).leader for other in others)
        return len(led) == 1 and led.issubset(others)

    run.until(is_replaced, f"the nodes other than {struck} have a leader")
    return led.pop()


def _scenario(hosts: int, strike: Strike) -> Body:
    def body(run_dir: Path, times: int, reporter: ScenarioReporter) -> list[Expectation]:
        plan = default_plan(workers=WORKERS, steps=1_000_000)
        measured = _Measured()
        with (
            host_nodes(run_dir / "hosts", hosts) as nodes,
            training(plan, run_dir, nodes.coordinators) as run,
        ):
            run.until_in(WORKERS, 0)
            run.wait(WATCH_S)
            began_ns = run.now_ns()
            for number in range(times):
                happened = strike(nodes, run, number, measured)
                run.until(lambda _: nodes.agree(), "all nodes follow one leader")
                reporter(f"{number + 1} of {times}: {happened}")
                reporter.so_far(_judge(run.history(), measured, began_ns, run.now_ns()))
            ended_ns = run.now_ns()
            history = run.finish(30, early=True)
        judged = [
            not_judged("hosts that share only their network", str(hosts)),
            *_judge(history, measured, began_ns, ended_ns),
        ]
        return [*reporter.settled(judged), *proofs(run_dir, history, reporter)]

    return body


def _judge(history: History, measured: _Measured, began_ns: int, until_ns: int) -> list[Expectation]:
    numbers = {event.fields["number"] for event in events_of(history, "generation_entered")}
    expectations = [
        not_delayed(history, began_ns, until_ns, "while hosts fail"),
        exactly("the run stays in one generation", len(numbers), 1),
        exactly("a minority answers no request", measured.minority_answers, 0),
        exactly("a minority commits no entry", measured.minority_commits, 0),
    ]
    if measured.new_leader_s:
        longest_s = max(measured.new_leader_s)
        expectations.append(at_most("another node leads after the fault, maximum", longest_s, 2.0, "s"))
    return expectations
