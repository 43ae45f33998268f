"""Sample order: every worker gets its own samples, each once per epoch, for any batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.sync.samples import MIXED_BLOCKS, SampleStream, slice_of

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(samples=st.integers(1, 50), seed=st.integers(0, 2**63 - 1), epochs=st.integers(1, 4))
def test_every_sample_is_seen_once_in_every_epoch(samples: int, seed: int, epochs: int) -> None:
    stream = SampleStream(num_samples=samples, seed=seed)
    for epoch in range(epochs):
        assert sorted(stream.take(epoch * samples, samples)) == list(range(samples))


@given(sizes=SIZES, steps=st.integers(1, 6))
def test_the_slices_of_all_workers_tile_the_stream_without_gap_or_overlap(
    sizes: list[int], steps: int
) -> None:
    end = 0
    for step in range(steps):
        for rank in range(len(sizes)):
            start, count = slice_of(rank, step, sizes)
            assert start == end
            assert count == sizes[rank]
            end += count


@given(samples=st.integers(1, 20), start=st.integers(0, 60), count=st.integers(1, 70))
def test_a_batch_may_straddle_epochs_and_reads_the_one_stream(samples: int, start: int, count: int) -> None:
    whole = SampleStream(num_samples=samples, seed=3).take(0, start + count)
    part = SampleStream(num_samples=samples, seed=3).take(start, count)
    assert len(part) == count
    assert np.array_equal(part, whole[start:])


@given(starts=st.lists(st.integers(0, 400), min_size=1, max_size=12))
def test_what_was_read_before_does_not_change_what_is_read(starts: list[int]) -> None:
    reused = SampleStream(num_samples=30, seed=1)
    for start in starts:
        fresh = SampleStream(num_samples=30, seed=1)
        assert np.array_equal(reused.take(start, 7), fresh.take(start, 7))


def test_epochs_and_seeds_differ_from_each_other() -> None:
    one, other = SampleStream(num_samples=100, seed=0), SampleStream(num_samples=100, seed=1)
    assert not np.array_equal(one.take(0, 100), other.take(0, 100))
    assert not np.array_equal(one.take(0, 100), one.take(100, 100))


def test_in_order_every_epoch_takes_the_samples_as_they_come() -> None:
    stream = SampleStream(num_samples=5, seed=3, in_order=True)
    assert stream.take(0, 12).tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


@given(samples=st.integers(1, 60), sizes=SIZES, seed=st.integers(0, 2**63 - 1))
def test_over_one_epoch_the_ranks_samples_are_disjoint_and_complete_also_when_nothing_divides(
    samples: int, sizes: list[int], seed: int
) -> None:
    """What torch's DistributedSampler promises, and without its padding: no sample is taken twice."""
    streams = [SampleStream(num_samples=samples, seed=seed) for _ in sizes]  # each rank has its own
    taken: list[list[int]] = [[] for _ in sizes]
    for step in range(-(-samples // sum(sizes))):
        for rank, stream in enumerate(streams):
            start, count = slice_of(rank, step, sizes)
            within = min(count, max(0, samples - start))  # the last step reaches into the next epoch
            taken[rank] += [int(i) for i in stream.take(start, count)[:within]]
    assert sorted(i for mine in taken for i in mine) == list(range(samples))


@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 3))
def test_mixing_in_blocks_takes_every_sample_once_and_few_blocks_at_a_time(
    num_samples: int, block: int, epoch: int
) -> None:
    stream = SampleStream(num_samples=num_samples, seed=7, block=block)
    order = stream.take(epoch * num_samples, num_samples)
    assert sorted(order.tolist()) == list(range(num_samples))
    at_once = MIXED_BLOCKS * block
    for first in range(0, num_samples, at_once):
        touched = set((order[first : first + at_once] // block).tolist())
        assert len(touched) <= MIXED_BLOCKS + 1  # a short last stretch moves the others


def test_mixing_in_blocks_is_another_order_in_every_epoch_and_the_same_again() -> None:
    first, again = (SampleStream(num_samples=100, seed=1, block=10) for _ in range(2))
    assert first.take(0, 300).tolist() == again.take(0, 300).tolist()
    assert first.take(0, 100).tolist() != first.take(100, 100).tolist()
    assert first.take(0, 80).tolist() != sorted(first.take(0, 80).tolist())
