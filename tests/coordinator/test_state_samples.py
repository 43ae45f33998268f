"""Every sample of an epoch is committed exactly once, whichever worker is lost when.

The model below receives everything that was leased and committed, one sample at a time, and has no
notion of ranges.
"""

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fixtures.coordinator.commands import Cluster, changed

from paceline.coordinator.proto import cluster_pb2 as pb
from paceline.coordinator.state import samples
from paceline.coordinator.state.machine import CoordinatorState


def lease(cluster: Cluster, count: int, worker: str = "a", generation: int = 1) -> pb.SampleLease:
    command = pb.LeaseSamples(run="r", generation=generation, worker=worker, count=count)
    return cluster.ok(command, pb.SampleLease)


def commit(cluster: Cluster, sample_lease: pb.SampleLease) -> pb.SampleLease:
    command = pb.CommitSamples(run="r", generation=sample_lease.generation, lease=sample_lease.lease)
    return cluster.ok(command, pb.SampleLease)


def test_samples_are_leased_in_order_and_the_last_lease_is_short() -> None:
    cluster = Cluster().working("a", samples=10)
    sample_leases = [lease(cluster, 4) for _ in range(3)]
    assert [(part.first, part.end) for part in sample_leases] == [(0, 4), (4, 8), (8, 10)]
    assert [part.lease for part in sample_leases] == [cluster.index - 2, cluster.index - 1, cluster.index]


def test_when_all_are_leased_but_not_committed_there_is_nothing_right_now() -> None:
    cluster = Cluster().working("a", samples=4)
    held = lease(cluster, 4)
    applied = cluster.say(pb.LeaseSamples(run="r", generation=1, worker="a", count=4))
    nothing = applied.outcome.samples
    assert (nothing.lease, nothing.first == nothing.end, applied.changes) == (0, True, ())
    commit(cluster, held)
    following = lease(cluster, 3)
    assert (following.epoch, following.first, following.end) == (1, 0, 3)


def test_a_lease_committed_twice_is_counted_once() -> None:
    cluster = Cluster().working("a", samples=10)
    sample_lease = lease(cluster, 4)
    first = commit(cluster, sample_lease)
    again = cluster.say(pb.CommitSamples(run="r", generation=1, lease=sample_lease.lease))
    assert again.outcome.samples == first
    assert first.is_committed
    assert again.changes == ()
    assert cluster.state.runs["r"].samples.committed == 4


def test_what_a_lost_worker_had_is_leased_again_lowest_first() -> None:
    cluster = Cluster().working("a", "b", samples=20)
    first, _, third = lease(cluster, 4, "a"), lease(cluster, 4, "b"), lease(cluster, 4, "a")
    commit(cluster, first)
    applied = cluster.lose("b")
    returned = changed(applied, pb.SampleLease)
    assert [(result.first, result.end, result.is_returned) for result in returned] == [
        (4, 8, True),
        (8, 12, True),
    ]
    assert cluster.state.runs["r"].samples.returned == [(4, 12)]
    cluster.form(["a"], previous=1)
    assert cluster.refused(pb.CommitSamples(run="r", generation=1, lease=third.lease)).why == pb.FENCED
    assert cluster.refused(pb.CommitSamples(run="r", generation=2, lease=third.lease)).why == pb.NOT_FOUND
    parts = [lease(cluster, count, generation=2) for count in (5, 5, 5)]
    assert [(part.first, part.end) for part in parts] == [(4, 9), (9, 12), (12, 17)]


def test_a_lease_is_known_by_its_number_only_in_its_generation() -> None:
    cluster = Cluster().working("a", samples=10)
    sample_lease = lease(cluster, 4)
    commit(cluster, sample_lease)
    cluster.form(["a"], previous=1)
    assert (
        cluster.refused(pb.CommitSamples(run="r", generation=2, lease=sample_lease.lease)).why == pb.NOT_FOUND
    )
    assert cluster.state.runs["r"].samples.committed == 4


def test_only_members_lease_samples_and_only_some() -> None:
    cluster = Cluster().working("a", samples=10)
    cluster.join("spare", role="spare")
    for worker, count, why in (("spare", 1, pb.FENCED), ("z", 1, pb.FENCED), ("a", 0, pb.INVALID)):
        command = pb.LeaseSamples(run="r", generation=1, worker=worker, count=count)
        assert cluster.refused(command).why == why


def test_a_run_without_samples_leases_none() -> None:
    cluster = Cluster().working("a")
    assert cluster.refused(pb.LeaseSamples(run="r", generation=1, worker="a", count=1)).why == pb.INVALID


def test_a_lease_that_never_was_cannot_be_committed() -> None:
    cluster = Cluster().working("a", samples=10)
    assert cluster.refused(pb.CommitSamples(run="r", generation=1, lease=77)).why == pb.NOT_FOUND
    assert cluster.refused(pb.CommitSamples(run="r", generation=1, lease=0)).why == pb.NOT_FOUND


def test_open_and_remembered_leases_are_bounded() -> None:
    cluster = Cluster().working("a", samples=1 << 40)
    sample_leases = [lease(cluster, 1) for _ in range(samples.MAX_OPEN_LEASES)]
    assert cluster.refused(pb.LeaseSamples(run="r", generation=1, worker="a", count=1)).why == pb.NOT_NOW
    for part in sample_leases:
        commit(cluster, part)
    record = cluster.state.runs["r"]
    assert (len(record.leases), len(record.consumed)) == (0, samples.MAX_CONSUMED_LEASES)
    assert record.samples.committed == samples.MAX_OPEN_LEASES


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)))
def test_merging_ranges_neither_adds_nor_drops_a_sample(numbers: set[int]) -> None:
    result = samples.merge_ranges((number, number + 1) for number in numbers)
    assert [number for first, end in result for number in range(first, end)] == sorted(numbers)
    assert all(left[1] < right[0] for left, right in pairwise(result))


class ExactlyOnce(RuleBasedStateMachine):
    """Four names that join, are lost, leave and are replaced; leases of all sizes; commits, late ones too."""

    @initialize(size=st.integers(1, 25))
    def begin(self, size: int) -> None:
        self.cluster = Cluster()
        self.cluster.run(samples=size)
        self.size = size
        self.leases: list[pb.SampleLease] = []
        self.committed: Counter[tuple[int, int]] = Counter()  # (epoch, sample)

    @rule(worker=st.sampled_from("abcd"), role=st.sampled_from(["worker", "spare"]))
    def join(self, worker: str, role: str) -> None:
        self.cluster.join(worker, role)

    @rule(worker=st.sampled_from("abcd"), is_lost=st.booleans())
    def end(self, worker: str, is_lost: bool) -> None:
        living = self.cluster.state.runs["r"].workers.get(worker)
        if living is not None:
            kind = pb.LoseWorker if is_lost else pb.LeaveRun
            self.cluster.ok(kind(run="r", worker=worker, incarnation=living.incarnation), pb.Worker)

    @rule(of=st.integers(1, 4))
    def form(self, of: int) -> None:
        record = self.cluster.state.runs["r"]
        members = list(record.workers)[:of]
        if members:
            self.cluster.form(members, previous=record.run.generation)

    @rule()
    def revoke(self) -> None:
        self.cluster.say(pb.RevokeGeneration(run="r", generation=self.cluster.state.runs["r"].run.generation))

    @rule(worker=st.sampled_from("abcd"), count=st.integers(1, 9), back=st.integers(0, 1))
    def lease(self, worker: str, count: int, back: int) -> None:
        generation = max(0, self.cluster.state.runs["r"].run.generation - back)
        command = pb.LeaseSamples(run="r", generation=generation, worker=worker, count=count)
        result = self.cluster.say(command).outcome.samples
        assert result.end - result.first <= count
        if result.lease:
            self.leases.append(result)

    @rule(data=st.data(), back=st.integers(0, 1))
    def commit(self, data: st.DataObject, back: int) -> None:
        """Any lease that was ever given, perhaps again, perhaps in the name of another generation."""
        if not self.leases:
            return
        result = data.draw(st.sampled_from(self.leases[-12:]))
        command = pb.CommitSamples(run="r", generation=result.generation + back, lease=result.lease)
        applied = self.cluster.say(command)
        if applied.changes:
            samples_ = range(result.first, result.end)
            self.committed.update((result.epoch, sample) for sample in samples_)

    @rule()
    def restore(self) -> None:
        self.cluster.state = CoordinatorState.restore(self.cluster.state.snapshot())

    @invariant()
    def no_sample_is_committed_twice(self) -> None:
        assert all(times == 1 for times in self.committed.values())

    @invariant()
    def every_epoch_that_is_over_was_committed_whole(self) -> None:
        now = self.cluster.state.runs["r"].samples.epoch
        by_epoch = Counter(epoch for epoch, _ in self.committed)
        assert all(by_epoch[epoch] == self.size for epoch in range(now))

    @invariant()
    def every_sample_is_in_exactly_one_place(self) -> None:
        record = self.cluster.state.runs["r"]
        cursor = record.samples
        committed = [sample for epoch, sample in self.committed if epoch == cursor.epoch]
        held = [sample for entry in record.leases.values() for sample in range(entry.first, entry.end)]
        returned = [sample for first, end in cursor.returned for sample in range(first, end)]
        never = list(range(cursor.next, self.size))
        assert sorted(committed + held + returned + never) == list(range(self.size))
        assert cursor.committed == len(committed)
        assert returned == sorted(returned)


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
