"""Elastic jobs, followed on a virtual clock: a lost host is neither a failure of the job nor its end.

Recorded clusters show what a deleted, evicted or unreachable pod looks like. Their jobs were not elastic and
failed with the pod, so here the tape goes on as an operator keeps an elastic job: the pod of the command and
the job itself stay as they were before the loss.
"""

from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.kubernetes.recordings import recording
from tests.k8s.replay import Played, Tape, Wakes, follow, tape
from tests.k8s.torch_rendered import objects

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.hosts import is_host
from paceline.k8s.diagnose.snapshot import name_of
from paceline.k8s.kinds import JOB_KINDS
from paceline.k8s.objects import ELASTIC_NODES, mapping, mappings
from paceline.k8s.submit.requirements import roles

_JOBS = [kind.name for kind in JOB_KINDS]


def elastic_tape(name: str, nodes: str = "1:1") -> Tape:
    """The recording, of a job with this range of hosts that outlives them."""
    taped = tape(recording(name))
    lost_t = min(
        event.t
        for event in taped.events
        if event.kind == "Pod" and is_host(event.object) and event.object["metadata"].get("deletionTimestamp")
    )
    events = [
        event
        for event in taped.events
        if event.t < lost_t or (event.kind == "Pod" and is_host(event.object)) or event.kind == "Event"
    ]
    return marked(replace(taped, events=tuple(events)), nodes)


def marked(taped: Tape, nodes: str) -> Tape:
    """The tape of the same job with the annotation of an elastic one."""
    events = []
    for event in taped.events:
        obj: dict[str, Any] = dict(event.object)
        if obj.get("kind") in _JOBS and name_of(obj) == taped.job_name:
            notes = {**obj["metadata"].get("annotations", {}), ELASTIC_NODES: nodes}
            obj["metadata"] = {**obj["metadata"], "annotations": notes}
        events.append(replace(event, object=obj))
    return replace(taped, events=tuple(events))


def losses(result: Played) -> list[str]:
    return [text for text in result.said if text.startswith("host ")]


LOST = {
    "deleted-pytorchjob": "deleted",
    "evicted-pytorchjob": "evicted",
    "deleted-job": "deleted",
    "evicted-job": "evicted",
}


@pytest.mark.parametrize("wakes", Wakes, ids=lambda wakes: wakes.name.lower())
@pytest.mark.parametrize("name", LOST)
def test_a_recorded_loss_of_a_host_is_announced_once_and_nothing_is_removed(name: str, wakes: Wakes) -> None:
    result = follow(elastic_tape(name), wakes=wakes)
    assert (result.end, result.removed_t, result.sent_again_t, result.told) == (None, None, None, ())
    (said,) = losses(result)
    assert said.endswith(f"is lost ({LOST[name]}): the job continues")


@pytest.mark.parametrize("name", ["deleted-restarts-rayjob"])
def test_a_ray_job_that_outlived_a_worker_pod_ends_with_its_command(name: str) -> None:
    result = follow(marked(tape(recording(name)), "1:2"))
    assert result.end is not None
    assert result.end.code is ExitCode.OK
    assert (result.removed_t, result.sent_again_t, result.told) == (None, None, ())
    assert losses(result)


@pytest.mark.parametrize("name", ["crash-pytorchjob", "crash-job", "crash-rayjob"])
def test_a_crash_of_the_users_code_stays_a_failure_of_an_elastic_job(name: str) -> None:
    result = follow(marked(tape(recording(name)), "1:1"))
    assert result.end is not None
    assert result.end.code is not ExitCode.OK
    assert result.sent_again_t is None
    assert [finding.failure.name for finding in result.told] == [
        finding.failure.name for finding in follow(tape(recording(name))).told
    ]


@pytest.mark.parametrize(
    "name", ["wrong-tag-pytorchjob", "wrong-tag-job", "never-fits-pytorchjob", "quota-job"]
)
def test_a_job_whose_hosts_never_start_is_stuck_as_any_other(name: str) -> None:
    result = follow(marked(tape(recording(name)), "1:1"))
    assert result.told
    assert result.removed_t is not None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("pytorchjob-hosts", {"master": 1, "worker": 2}),
        ("job-hosts", {"pod": 3}),
        ("trainjob-hosts", {"command": 1, "node": 2}),
    ],
)
def test_room_is_required_for_the_command_and_the_fewest_hosts(name: str, wanted: dict[str, int]) -> None:
    found = {role.name: role for role in roles(objects(name)[0])}
    assert {role.name: role.count for role in found.values()} == wanted
    for role in found.values():
        (container,) = mappings(role.pod, "spec", "containers")
        assert mapping(container, "resources", "requests")["memory"] == "4Gi"
