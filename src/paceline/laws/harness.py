"""H: what a program says about its runs, without which no comparison of modes is fair."""

import json
from dataclasses import replace

from paceline.laws.lab import RANDOM_SPEEDS, Finding, Lab, Law, bit_equal, run
from paceline.laws.witness import CollectiveWitness, Witness
from paceline.plan.plan import Evaluation
from paceline.sync.fault_rules import Stragglers
from paceline.worker.entry.virtual import VirtualRun
from paceline.worker.participant import state_hash


def h1_every_mode_does_the_same_work(lab: Lab) -> Finding:
    plan = lab.plan(stragglers=RANDOM_SPEEDS)
    report = lab.report(plan)
    same = report.gradients == plan.total_gradients and report.positions == tuple(range(plan.total_gradients))
    return Finding(
        same, f"{report.gradients} gradients of {plan.total_gradients}, every work unit once: {same}"
    )


def h2_bytes_are_counted_both_ways(lab: Lab) -> Finding:
    plan = lab.plan()
    witness = Witness.of(plan.num_workers)
    meetings = CollectiveWitness()
    report = lab.report(plan, wrap_store=witness.wrap, wrap_collective=meetings.wrap)
    counted = report.bytes_out, report.bytes_in
    seen = witness.pushed_bytes + meetings.moved_bytes, witness.pulled_bytes + meetings.moved_bytes
    return Finding(counted == seen, f"sent and received {counted}, passed to the transport {seen}")


def h3_slowness_strikes_every_mode_alike(lab: Lab) -> Finding:
    """Every step takes as long as the plan's rules say for this worker and step, whatever the mode."""
    plan = lab.plan(stragglers=RANDOM_SPEEDS)
    stragglers = Stragglers(plan.stragglers, seed=plan.seed)
    wrong = []
    slow = 0
    for (rank, step), delay_ns in lab.report(plan).delays_ns.items():
        expected_s = stragglers.at(rank, step).duration_s(0.0, plan.pace_s)
        slow += expected_s > plan.pace_s
        wrong += [(rank, step)] if delay_ns != round(expected_s * 1e9) else []
    return Finding(
        not wrong and slow > 0, f"{slow} slow steps; not as configured (rank, step): {sorted(wrong)[:4]}"
    )


def h4_the_staleness_told_is_the_true_one(lab: Lab) -> Finding:
    """True is: how many gradients arrived between this one's reading and its own arrival."""
    plan = lab.plan(num_workers=4, steps=20, stragglers=RANDOM_SPEEDS)
    witness = Witness.of(4)
    report = lab.report(plan, wrap_store=witness.wrap)
    arrived = 0
    read_at = dict[int, int]()
    true = list[int]()
    for act in witness.acts:
        if act.what == "pull":
            read_at[act.rank] = arrived
        elif act.what == "push":
            true.append(arrived - read_at[act.rank])
            arrived += 1
    means = sum(report.staleness) / len(report.staleness), sum(true) / len(true)
    return Finding(
        report.staleness == tuple(true), f"mean reported {means[0]:.2f}, true {means[1]:.2f}, N-1 = 3"
    )


def h5_no_wait_polls(lab: Lab) -> Finding:
    """In virtual time moving takes none: what is neither work nor waiting is sleep between questions."""
    report = lab.report(lab.plan(stragglers=RANDOM_SPEEDS, steps=20))
    return Finding(report.slept_ns == 0, f"slept between polls: {report.slept_ns / 1e6:g} ms")


MANY = ("ssgd", "ps", "asgd", "ssp", "localsgd", "diloco", "adaptive")
ALL = ("single", *MANY)
PLANNED = tuple(mode for mode in ALL if mode != "adaptive")  # a step of fewer samples takes less
LAWS = (
    Law(
        "H1",
        "every mode does the same work: T·N gradients, every work unit once",
        ALL,
        h1_every_mode_does_the_same_work,
        per_mode=True,
    ),
    Law(
        "H2",
        "bytes sent and received are counted as passed to the transport",
        ALL,
        h2_bytes_are_counted_both_ways,
        per_mode=True,
    ),
    Law(
        "H3",
        "injected slowness is that of the plan, the same in every mode",
        PLANNED,
        h3_slowness_strikes_every_mode_alike,
        per_mode=True,
    ),
    Law(
        "H4",
        "the reported staleness is the number of updates between reading and applying",
        ("asgd",),
        h4_the_staleness_told_is_the_true_one,
    ),
    Law(
        "H5",
        "a wait ends when its condition holds: no worker polls",
        MANY,
        h5_no_wait_polls,
        per_mode=True,
    ),
)


TASK = "paceline.laws.tasks:ValidatedTask"
# ddp needs processes; of adaptive the bits depend on measured speeds, which virtual time repeats.
EVALUATED = (
    *("single", "ssgd", "localsgd", "fedavg", "diloco", "onebit", "adaptive"),
    *("ps", "backup", "asgd", "ssp", "dssp", "easgd"),
)


def v1_looking_changes_nothing(lab: Lab) -> Finding:
    """With batch normalisation, and a validation that draws random numbers."""
    plan = lab.plan(task=TASK, task_options={"batch_norm": True}, stragglers=RANDOM_SPEEDS)
    looked_at = run(replace(plan, evaluation=Evaluation(every=3)))
    finding = bit_equal(
        state_hash(run(plan).final_state()), state_hash(looked_at.final_state()), of="without and with"
    )
    seen = len(_losses(looked_at))
    return Finding(finding.ok and seen > 0, f"{finding.measured}; evaluated {seen} times")


def v2_any_number_of_workers_sees_the_same(lab: Lab) -> Finding:
    """At a rate that moves nothing, so that all have the same parameters to look at."""
    losses_by_count = {}
    for num_workers in (1, 2, 3, 100):
        plan = lab.plan(
            task=TASK, num_workers=num_workers, steps=1, lr=1e-300, evaluation=Evaluation(every=1)
        )
        losses_by_count[num_workers] = _losses(run(plan))
    return Finding(
        len({str(losses) for losses in losses_by_count.values()}) == 1,
        f"by number of workers: {losses_by_count}",
    )


def _losses(done: VirtualRun) -> list[float]:
    events = (event for event in done.history.plain if event.kind == "evaluated")
    return [json.loads(str(event.fields["metrics"]))["valid_loss"] for event in events]


EVALUATION_LAWS = (
    Law(
        "V1",
        "evaluating while training changes no bit of the result",
        EVALUATED,
        v1_looking_changes_nothing,
        per_mode=True,
    ),
    Law(
        "V2",
        "any number of workers evaluates the same parameters to the same bits",
        ("ssgd",),
        v2_any_number_of_workers_sees_the_same,
    ),
)
