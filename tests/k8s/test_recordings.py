"""Recorded clusters, followed on a virtual clock: what is retried, what is removed, what is left alone.

`about.json` of each recording says which action was right. A job that succeeded is never touched, however
long its pods take to start and whenever the follower looks.
"""

from functools import cache

import pytest
from tests.fixtures.kubernetes.recordings import Recording, recording, recordings
from tests.k8s.replay import Played, RecordedApi, Tape, VirtualClock, Wakes, follow, starting_moments, tape

from paceline.core.errors import ExitCode
from paceline.k8s.diagnose.retry import RetryPolicy
from paceline.k8s.diagnose.snapshot import subject_of, uid_of
from paceline.k8s.kinds import JOB, JOB_SET, POD, RAY_CLUSTER
from paceline.k8s.objects import mappings
from paceline.k8s.submit.job_objects import find_job
from paceline.k8s.submit.job_watch import job_snapshot

# Recordings of single API answers have no job to follow.
FOLLOWED = [
    item.name for item in recordings() if any(event.kind.endswith("Job") for event in item.timeline())
]
HEALTHY = [
    name for name in FOLLOWED if not (recording(name).should_be_retried or recording(name).should_be_removed)
]
LASTING = ("node-unreachable-job",)  # the node came back: left alone or started again, both are right
# Standstills of an image pull, of the scheduler or of a kubelet.
STANDSTILLS_S = (200.0, 600.0, 1500.0)
# A lookup that timed out does not tell a wrong host name from a resolver that is down: tried again within the
# budget, and given up after it.
_MAY_BE_RETRIED = ("wrong-registry-timeout-pytorchjob",)


@cache
def taped(name: str) -> Tape:
    return tape(recording(name))


@cache
def played(name: str, wakes: Wakes) -> Played:
    return follow(taped(name), wakes=wakes)


@pytest.mark.parametrize("wakes", Wakes, ids=lambda wakes: wakes.name.lower())
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_recorded_job_is_retried_removed_or_left_alone_as_it_deserves(name: str, wakes: Wakes) -> None:
    _is_right(recording(name), played(name, wakes))


def _is_right(recorded: Recording, result: Played) -> None:
    message = f"told {[report.failure.name for report in result.told]}, ended with {result.end}"
    if recorded.name in _MAY_BE_RETRIED:
        assert result.sent_again_t is not None, message
    elif recorded.should_be_removed:
        assert result.sent_again_t is None, message
        assert result.end is not None, message
        assert result.end.code is not ExitCode.OK, message
        # A job that is over by itself stays, with its pods and logs.
        assert result.removed_t is not None or "failed" in result.states, message
    elif recorded.name in LASTING:
        assert result.removed_t is None, message
    elif recorded.should_be_retried:
        assert result.sent_again_t is not None, message
    else:
        assert (result.removed_t, result.sent_again_t) == (None, None), message
        assert result.end is not None, message
        assert result.end.code is ExitCode.OK, message


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_is_left_alone_however_long_a_pod_takes_to_start(name: str) -> None:
    """Nothing is removed on a consequence while its cause is in progress, whenever it stands still."""
    whole = taped(name)
    moments = starting_moments(whole)
    for number, at_t in enumerate(moments[:: max(1, len(moments) // 5)]):
        by_s = STANDSTILLS_S[number % len(STANDSTILLS_S)]
        result = follow(whole.stretched(at_t, by_s), after_s=60.0, look_s=20.0)
        message = f"{by_s:.0f} s more at {at_t:.1f} s: told {[report.failure.name for report in result.told]}"
        assert (result.removed_t, result.sent_again_t) == (None, None), message
        assert result.end is not None, message
        assert result.end.code is ExitCode.OK, message


@pytest.mark.parametrize("name", FOLLOWED)
def test_pods_belong_to_a_job_through_the_uids_of_their_owners(name: str) -> None:
    """Also where a job of the same name was deleted before it, and its pods are still terminating."""
    whole = taped(name)
    for t in (whole.submitted_t() + 6.0, whole.end_t):
        clock = VirtualClock(whole, t, Wakes.PACED)
        api = RecordedApi(whole, clock, RetryPolicy())
        job = find_job(api, whole.job_name, whole.namespace)
        assert job is not None
        uids = {uid_of(job[1])}
        for kind in (RAY_CLUSTER, JOB_SET, JOB, POD):
            for item in api.find(kind).items:
                owners = mappings(item, "metadata", "ownerReferences")
                uids |= {uid_of(item)} if any(owner["uid"] in uids for owner in owners) else set()
        seen = job_snapshot(api, job[1], whole.job_name, whole.namespace, now_s=clock.unix_s(), logs=False)
        pods = {uid_of(manifest) for manifest in api.find(POD).items}
        assert {uid_of(pod) for pod in seen.pods} == pods & uids
        assert not [event for event in seen.events if subject_of(event).get("uid") in pods - uids]


@pytest.mark.parametrize("wakes", Wakes, ids=lambda wakes: wakes.name.lower())
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_job_s_state_never_goes_back_and_forth(name: str, wakes: Wakes) -> None:
    order = ["queued", "pending", "running", "succeeded", "failed"]
    states = played(name, wakes).states
    assert [order.index(state) for state in states] == sorted({order.index(state) for state in states})
