"""Mixing keeps the mean, converges, and reaches all workers in time, on any graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.sync.topology import (
    Mixing,
    Topology,
    choose_partner,
    metropolis_weights,
    neighbours,
    push_weights,
    rounds_to_all,
)

Matrix = NDArray[np.float64]
UNDIRECTED = [t for t in Topology if t is not Topology.EXPONENTIAL]
GRAPHS = st.sampled_from(UNDIRECTED)
WORKERS = st.integers(1, 40)


def matrix(mixings: list[Mixing]) -> Matrix:
    weights = np.zeros((len(mixings), len(mixings)))
    for rank, mixing in enumerate(mixings):
        for source, weight in mixing.weights:
            weights[rank, source] = weight
    return weights


@given(topology=GRAPHS, workers=WORKERS)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(topology: Topology, workers: int) -> None:
    weights = matrix([metropolis_weights(topology, rank, workers) for rank in range(workers)])
    assert np.array_equal(weights, weights.T)
    assert np.allclose(weights.sum(axis=0), 1.0, rtol=0, atol=1e-14)
    assert np.allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    assert weights.min() >= 0
    assert np.diag(weights).min() > 0


@given(topology=GRAPHS, workers=WORKERS)
def test_mixing_brings_all_workers_together(topology: Topology, workers: int) -> None:
    weights = matrix([metropolis_weights(topology, rank, workers) for rank in range(workers)])
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    assert sizes[-1] == pytest.approx(1.0)
    assert workers == 1 or sizes[-2] < 1 - 1e-4


@given(topology=GRAPHS, workers=WORKERS)
def test_neighbours_are_mutual_and_never_oneself(topology: Topology, workers: int) -> None:
    for rank in range(workers):
        near = neighbours(topology, rank, workers)
        assert rank not in near
        assert all(rank in neighbours(topology, other, workers) for other in near)
        assert metropolis_weights(topology, rank, workers).targets == near


@given(topology=st.sampled_from(list(Topology)), workers=WORKERS, step=st.integers(0, 1000))
def test_pushing_gives_away_exactly_what_one_has(topology: Topology, workers: int, step: int) -> None:
    mixings = [push_weights(topology, rank, workers, step) for rank in range(workers)]
    assert np.allclose(matrix(mixings).sum(axis=0), 1.0, rtol=0, atol=1e-14)
    received = {(source, rank) for rank, m in enumerate(mixings) for source in m.sources if source != rank}
    sent = {(rank, target) for rank, m in enumerate(mixings) for target in m.targets}
    assert received == sent


@given(topology=st.sampled_from(list(Topology)), workers=WORKERS, begin=st.integers(0, 100))
def test_an_update_reaches_all_workers_in_the_stated_rounds(
    topology: Topology, workers: int, begin: int
) -> None:
    rounds = rounds_to_all(topology, workers)
    knows = np.eye(workers, dtype=np.bool_)  # knows[i, j]: i has heard of j
    needed = 0
    while not knows.all():
        mixings = [push_weights(topology, rank, workers, begin + needed) for rank in range(workers)]
        knows = (matrix(mixings) > 0) @ knows
        needed += 1
        assert needed <= rounds


@pytest.mark.parametrize(
    ("topology", "workers", "rank", "expected"),
    [
        (Topology.RING, 2, 0, (1,)),
        (Topology.RING, 5, 0, (1, 4)),
        (Topology.TORUS, 12, 0, (1, 3, 4, 8)),  # 3 rows of 4
        (Topology.TORUS, 7, 3, (2, 4)),
        (Topology.HYPERCUBE, 8, 5, (1, 4, 7)),
        (Topology.HYPERCUBE, 5, 4, (0,)),
        (Topology.STAR, 4, 0, (1, 2, 3)),
        (Topology.STAR, 4, 2, (0,)),
        (Topology.COMPLETE, 3, 1, (0, 2)),
    ],
)
def test_neighbours(topology: Topology, workers: int, rank: int, expected: tuple[int, ...]) -> None:
    assert neighbours(topology, rank, workers) == expected


def test_on_a_ring_each_of_three_voices_counts_a_third() -> None:
    assert metropolis_weights(Topology.RING, 2, 6).weights == ((1, 1 / 3), (2, 1 - 2 / 3), (3, 1 / 3))


def test_the_exponential_graph_hops_twice_as_far_every_step() -> None:
    assert [push_weights(Topology.EXPONENTIAL, 0, 6, step).targets for step in range(4)] == [
        (1,),
        (2,),
        (4,),
        (1,),
    ]


@given(seed=st.integers(0, 2**63), rank=st.integers(0, 50), step=st.integers(0, 10_000))
def test_a_partner_is_a_neighbour_and_always_the_same(seed: int, rank: int, step: int) -> None:
    near = (2, 3, 9)
    partner = choose_partner(near, seed=seed, rank=rank, step=step)
    assert partner in near
    assert partner == choose_partner(near, seed=seed, rank=rank, step=step)
    assert choose_partner((), seed=seed, rank=rank, step=step) is None


def test_every_neighbour_is_chosen_equally_often() -> None:
    drawn = [choose_partner((0, 1, 2), seed=5, rank=1, step=step) for step in range(9000)]
    assert all(abs(drawn.count(rank) - 3000) < 5 * 3000**0.5 for rank in range(3))
