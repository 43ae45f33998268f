"""V: what evaluating a model while it is trained must obey."""

import json
from dataclasses import replace

from paceline.laws.lab import RANDOM_SPEEDS, Lab, run
from paceline.laws.law import Finding, Law, bit_equal
from paceline.plan.plan import Evaluation
from paceline.worker.participant import state_hash
from paceline.worker.virtual import VirtualRun

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
    found = {}
    for num_workers in (1, 2, 3, 100):
        plan = lab.plan(
            task=TASK, num_workers=num_workers, steps=1, lr=1e-300, evaluation=Evaluation(every=1)
        )
        found[num_workers] = _losses(run(plan))
    return Finding(len({str(losses) for losses in found.values()}) == 1, f"by number of workers: {found}")


def _losses(done: VirtualRun) -> list[float]:
    events = (event for event in done.history.plain if event.kind == "evaluated")
    return [json.loads(str(event.fields["metrics"]))["valid_loss"] for event in events]


LAWS = (
    Law(
        "V1",
        "evaluating while training changes no bit of what is trained",
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
